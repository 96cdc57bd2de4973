"""A small training job with a planted change in the middle; it knows no profiler.

    python benchmarks/midrun_job.py --change forward --at 200 --steps 400

Sleeps stand for work, so that a machine with few cores has the same truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

CHANGES = (
    "none", "forward", "backward", "input", "optimizer", "quicker", "drift", "burst", "periodic",
    "outside",
)  # fmt: skip
WIDTH, BATCH = 128, 16
BURST_STEPS, EVERY = 40, 20


class Plan:
    """The parts that sleep longer, by the step that is under way."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.change, self.at, self.steps = args.change, args.at, args.steps
        self.base_s, self.extra_s = args.sleep_ms / 1e3, args.extra_ms / 1e3
        self.step = 0

    def sleep(self, part: str) -> None:
        later = self.step - self.at
        extra = 0.0
        if later >= 0 and part == self.change:
            extra = self.extra_s
        if later >= 0 and part == "forward":
            if self.change == "quicker":
                extra = -self.extra_s
            elif self.change == "drift":
                extra = 3 * self.extra_s * later / (self.steps - self.at)
            elif self.change == "burst" and later < BURST_STEPS:
                extra = self.extra_s
            elif self.change == "periodic" and later % EVERY == 0:
                extra = 10 * self.extra_s
        base = self.base_s if part in {"forward", "backward"} else 0.0
        if base + extra > 0:
            time.sleep(base + extra)


class Sleep(torch.autograd.Function):
    """Sleeps in the backward."""

    @staticmethod
    def forward(context: object, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        context.plan = plan  # type: ignore[attr-defined]
        return x * 1

    @staticmethod
    def backward(context: object, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.plan.sleep("backward")  # type: ignore[attr-defined]
        return gradients[0], None


class Net(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.plan.sleep("forward")
        found: torch.Tensor = Sleep.apply(self.layers(x), self.plan)
        return found


class Batches(IterableDataset):  # type: ignore[type-arg]  # of tensors
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self.plan.steps * BATCH):
            if step % BATCH == 0:
                self.plan.sleep("input")
            yield torch.randn(WIDTH)


class Slow(torch.optim.SGD):
    """An optimizer that sleeps."""

    plan: Plan

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.plan.sleep("optimizer")
        super().step()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--change", choices=CHANGES, default="none")
    options.add_argument("--at", type=int, default=200)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--sleep-ms", type=float, default=8.0)
    options.add_argument("--extra-ms", type=float, default=4.0)
    plan = Plan(options.parse_args())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net(plan)
    optimizer = Slow(net.parameters(), lr=1e-3)
    optimizer.plan = plan
    for batch in DataLoader(Batches(plan), batch_size=BATCH):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        plan.sleep("outside")
        plan.step += 1


if __name__ == "__main__":
    main()
