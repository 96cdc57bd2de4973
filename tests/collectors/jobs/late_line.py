"""Train on two ranks over gloo; a line of the second rank is slow if `slow` is given."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def augment(batch: torch.Tensor) -> torch.Tensor:
    if "slow" in sys.argv and dist.get_rank() == 1:
        time.sleep(0.03)  # slow on one rank
    return batch + 1


def batches() -> Iterator[torch.Tensor]:
    rows: Any = torch.randn(4 * 200, 16)
    yield from DataLoader(rows, batch_size=4)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    model = torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches():
        loss = model(augment(batch)).square().mean()
        loss.backward()
        time.sleep(0.01)
        optimizer.step()
        optimizer.zero_grad()
    print(float(loss).hex())
    dist.destroy_process_group()


main()
