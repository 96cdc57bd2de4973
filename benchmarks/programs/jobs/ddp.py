"""Data parallel training, as in torch's tutorials: by torchrun, or by `--spawn` itself."""

import os
import sys

import generated
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(rank, world):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "12397")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    images, labels = map(torch.from_numpy, generated.classes(512, (3, 16, 16)))
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=sampler)
    model = DDP(
        nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 12 * 12, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        print(rank, epoch, len(next(iter(loader))[0]))
        for source, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(source), targets)
            loss.backward()
            optimizer.step()
        if rank == 0:
            torch.save(model.module.state_dict(), "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "--spawn" in sys.argv:
        mp.spawn(train, args=(2,), nprocs=2)
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
