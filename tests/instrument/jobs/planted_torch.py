"""A training script whose odd steps sleep in one phase. One process, or two ranks under torchrun."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Sleeper:
    """Sleeps in one phase of every odd step."""

    def __init__(self, phase: str, seconds: float) -> None:
        self.phase = phase
        self.seconds = seconds
        self.step = 0
        self.slept: list[float] = []

    def at(self, phase: str) -> None:
        if phase == self.phase and self.step % 2:
            start = time.perf_counter()
            time.sleep(self.seconds)
            self.slept.append(time.perf_counter() - start)

    def tell(self) -> None:
        """A busy machine wakes a sleeper late: what it really slept is what must be found."""
        if self.slept:
            sys.stdout.write(f"slept ms {1e3 * sorted(self.slept)[len(self.slept) // 2]}\n")  # in one write: ranks share the pipe
            sys.stdout.flush()


class Slow(torch.Tensor):
    """A batch that takes its time when it is copied."""

    sleeper: Sleeper

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "to":
            cls.sleeper.at("h2d")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class Data(Dataset[tuple[torch.Tensor, int]]):
    """Seeded samples; the first of a batch may be slow to read."""

    def __init__(self, sleeper: Sleeper, steps: int) -> None:
        self.sleeper = sleeper
        self.rows = torch.randn(steps * BATCH, 64)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % BATCH == 0:
            self.sleeper.step = index // BATCH
            self.sleeper.at("data")
        return self.rows[index], index % 10

    def __len__(self) -> int:
        return len(self.rows)


class Model(torch.nn.Module):
    """A small perceptron that may be slow forwards and backwards."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self.sleeper = sleeper
        self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)
        self.second.weight.register_hook(lambda gradient: sleeper.at("backward"))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.sleeper.at("forward")
        outputs: torch.Tensor = self.second(torch.relu(self.first(inputs)))
        return outputs


class Optimizer(torch.optim.SGD):
    sleeper: Sleeper

    def step(self, closure: Any = None) -> Any:
        self.sleeper.at("optimizer")
        return super().step(closure)


def slow_exchange(sleeper: Sleeper, bucket: Any) -> Any:
    """DDP's own all-reduce, then a while in which its result is not there yet."""

    def late(done: Any) -> Any:
        sleeper.at("allreduce")
        return done.value()

    return allreduce_hook(dist.group.WORLD, bucket).then(late)  # type: ignore[arg-type]  # torch's own default


slow_exchange.__annotations__ = {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", default="none")
    parser.add_argument("--sleep-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sleeper = Slow.sleeper = Sleeper(args.phase, args.sleep_ms / 1e3)
    model: torch.nn.Module = Model(sleeper)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(sleeper, slow_exchange)
        model = parallel
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.sleeper = sleeper
    for inputs, labels in DataLoader(Data(sleeper, args.steps), batch_size=BATCH):
        batch = inputs.as_subclass(Slow).to(torch.float32, copy=True).as_subclass(torch.Tensor)
        loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    sleeper.tell()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
