"""Rank 1 sleeps before it asks for a batch: `late_before_batch.py ddp|fsdp MILLISECONDS`."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

STEPS = 60


def main() -> None:
    kind, sleep_s = sys.argv[1], float(sys.argv[2]) / 1e3
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 10)
    )
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model, mesh=mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(STEPS * 4, 64), torch.randint(0, 10, (STEPS * 4,)))
    for inputs, labels in DataLoader(data, batch_size=4):
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 1:
            time.sleep(sleep_s)
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
