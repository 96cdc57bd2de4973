"""A script on one or two ranks; every third step sleeps in one phase, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Sleeper:
    """Sleeps in each phase in turn, in every third step, so that its effects are over by then."""

    def __init__(self, phases: list[str], seconds: float) -> None:
        self.phases = phases
        self.seconds = seconds
        self.step = 0

    def at(self, phase: str) -> None:
        turn, pause = divmod(self.step % (3 * len(self.phases)), 3)
        if not pause and phase == self.phases[turn]:
            time.sleep(self.seconds)


class OwnClock:
    """The script's own view of its phases: a busy machine wakes a sleeper late."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def time(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.took.setdefault(phase, []).append(1e3 * (time.perf_counter() - start))

    def tell(self, rank: int) -> None:
        Path(f"own{rank}.json").write_text(json.dumps(self.took))


class Slow(torch.Tensor):
    """A batch that takes its time when it is copied."""

    sleeper: Sleeper

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
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

    return allreduce_hook(dist.group.WORLD, bucket).then(late)  # type: ignore[arg-type]


slow_exchange.__annotations__ = {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phases", default="forward")
    parser.add_argument("--sleep-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sleeper = Slow.sleeper = Sleeper(args.phases.split(","), args.sleep_ms / 1e3)
    model: torch.nn.Module = Model(sleeper)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(sleeper, slow_exchange)
        model = parallel
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.sleeper = sleeper
    own, batches = OwnClock(), iter(DataLoader(Data(sleeper, args.steps), batch_size=BATCH))
    for _ in range(args.steps):
        with own.time("data"):
            inputs, labels = next(batches)
        with own.time("h2d"):
            batch = inputs.as_subclass(Slow).to(torch.float32, copy=True).as_subclass(torch.Tensor)
        with own.time("forward"):
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
        with own.time("backward"):
            loss.backward()
        with own.time("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
    own.tell(int(os.environ.get("RANK", "0")))
    if dist.is_initialized():
        time.sleep(0.2)  # as torch_ddp.py: gloo's threads let go of the last bucket
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
