"""A job of two ranks under torchrun, the second of which takes longer for each forward, by `LATE_SHARE` of a healthy step.

It writes how long it really slept a step, in seconds, to the file that `PLANTED` names. For `real_runs.py`.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 60, 8
HEALTHY_STEPS = 10
"""As many as are warm-up in a run of this length: what is planted is in all steps that count."""


class Model(torch.nn.Module):
    """A small convolutional network that is held up before it begins."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Conv2d(3, 24, 3), *(layer for _ in range(3) for layer in (torch.nn.ReLU(), torch.nn.Conv2d(24, 24, 3)))]
        self.layers = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(24, 10))
        self.delay_s = 0.0
        self.slept: list[float] = []

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        if self.delay_s:
            begin = time.perf_counter()
            time.sleep(self.delay_s)
            self.slept.append(time.perf_counter() - begin)
        result: torch.Tensor = self.layers(pictures)
        return result


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    count = BATCH * (HEALTHY_STEPS + STEPS)
    loader = DataLoader(TensorDataset(torch.rand(count, 3, 48, 48), torch.randint(0, 10, (count,))), batch_size=BATCH)
    took: list[float] = []
    for step, (pictures, labels) in enumerate(loader):
        begin = time.perf_counter()
        if step == HEALTHY_STEPS and dist.get_rank() == 1:
            model.delay_s = float(os.environ.get("LATE_SHARE", "0")) * statistics.median(took)
        loss = torch.nn.functional.cross_entropy(parallel(pictures), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - begin)
    if model.slept:
        with Path(os.environ["PLANTED"]).open("a") as file:
            file.write(f"{statistics.mean(model.slept)}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
