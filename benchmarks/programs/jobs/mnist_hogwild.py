"""The loop of pytorch/examples' mnist_hogwild: processes that train one shared model."""

import generated
import torch
import torch.nn.functional as F
from mnist import Net
from torch import optim
from torch.utils.data import DataLoader, TensorDataset


def train(rank, model):
    torch.manual_seed(1 + rank)
    torch.set_num_threads(1)
    images, labels = map(torch.from_numpy, generated.classes(320, (1, 28, 28)))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    model.train()
    for _ in range(2):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
    print(rank, loss.item())


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.multiprocessing.set_start_method("spawn")
    model = Net()
    model.share_memory()
    processes = []
    for rank in range(2):
        process = torch.multiprocessing.Process(target=train, args=(rank, model))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
