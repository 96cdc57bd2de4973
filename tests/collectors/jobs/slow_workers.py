"""Train with two workers whose batches have a slow line; `fork`, `spawn`, or none of them."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

SLOW_S = 0.02


class Items(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLOW_S)  # slow in a worker
        return torch.full((4,), float(index % 7))


def main(steps: int, start: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Items(), batch_size=2, num_workers=2, multiprocessing_context=start)
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(float(loss).hex(), flush=True)
        if step == steps:
            break


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
