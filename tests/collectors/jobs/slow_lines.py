"""Train with slow lines in known places; each is marked with the phase in which it runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

import torch
from torch.utils.data import DataLoader, Dataset


class Items(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index % 7))


def collate(items: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(0.02)  # slow in data
    return torch.stack(items)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)  # slow in forward
        result: torch.Tensor = self.layer(batch)
        return result


def clip(parameters: Iterable[torch.nn.Parameter]) -> float:
    end = time.perf_counter() + 0.04
    total = 0.0
    while time.perf_counter() < end:
        total += sum(number * number for number in range(200))  # slow in unknown
    return total


def log(file: object, loss: torch.Tensor) -> None:
    os.write(file, b"x" * 1000)  # type: ignore[arg-type]
    os.fsync(file)  # type: ignore[arg-type]
    time.sleep(0.01)


def main(steps: int, *, killed: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    file = os.open("log.txt", os.O_CREAT | os.O_WRONLY)
    loader = DataLoader(Items(), batch_size=4, collate_fn=collate)
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        clip(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        log(file, loss)
        print(float(loss).hex(), flush=True)
        if step == steps:
            break
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)


main(int(sys.argv[1]), killed=len(sys.argv) > 2)
