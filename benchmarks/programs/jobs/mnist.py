"""The loop of pytorch/examples' mnist: train and test in each epoch."""

import generated
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16 * 12 * 12, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.log_softmax(self.fc(torch.flatten(self.dropout(F.max_pool2d(x, 2)), 1)), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for number, (data, target) in enumerate(loader):
        data, target = data.to("cpu"), target.to("cpu")
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if number % 10 == 0:
            print(f"epoch {epoch} loss {loss.item():.6f}")


def test(model, loader):
    model.eval()
    total = correct = 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            total += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"test {total / len(loader.dataset):.4f}, {correct} right")


def main():
    torch.manual_seed(1)
    images, labels = map(torch.from_numpy, generated.classes(630, (1, 28, 28)))
    data = TensorDataset(images, labels)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    for epoch in range(1, 4):
        train(model, loader, optimizer, epoch)
        test(model, DataLoader(data, batch_size=200))
        scheduler.step()
    torch.save(model.state_dict(), "mnist.pt")


if __name__ == "__main__":
    main()
