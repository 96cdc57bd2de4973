"""A training job whose phases cost what its options say, for `whatif.py experiments`.

Every other part of the run has half of one cost, so that the job and its faster twin meet the same
machine. Work is processor time of this thread: a thread that waits for a core works later.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from typing import Any

import numpy as np

BATCH, WIDTH, SIDE = 4, 64, 48
"""Samples of a batch, elements of a sample, and rows of the matrices that work multiplies."""

EXCHANGED = 1_000_000
"""Elements that each planted exchange sends."""

PART = 500
"""Steps of a part of the run."""

_LEFT = np.full((SIDE, SIDE), 0.5, dtype=np.float32)
_RIGHT, _OUT = _LEFT.copy(), _LEFT.copy()


def work(ms: float) -> None:
    """Multiply matrices until this thread has used so much processor time."""
    until = time.thread_time_ns() + ms * 1e6
    while time.thread_time_ns() < until:
        np.dot(_LEFT, _RIGHT, out=_OUT)


class Costs:
    """What the parts of a step cost; `step` is the one that the loop is in."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.step = 0

    def find(self, name: str, step: int | None = None) -> float:
        """Return a cost in the loop's step, or in another."""
        if step is None:
            step = self.step
        halved = name == self._options.halved and step // PART % 2
        return float(getattr(self._options, name)) / (2 if halved else 1)


class Samples:
    """A data set whose samples wait for storage and are decoded."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._costs = Costs(options)
        self._count: int = options.steps * BATCH

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        step, place = divmod(index, BATCH)
        if not place:  # once per batch: a sleep takes a little longer than it should
            sleep_ms = self._costs.find("data_sleep", step)
            if sleep_ms:
                time.sleep(sleep_ms / 1e3)
            work(self._costs.find("data_work", step))
        return np.full(WIDTH, index % 7, dtype=np.float32)


def train_torch(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    costs, late_ms = Costs(options), options.late * int(os.environ.get("RANK", "0"))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(WIDTH, WIDTH)
            self.second = torch.nn.Linear(WIDTH, 1)

        def forward(self, x: Any) -> Any:
            work(costs.find("forward") + late_ms)
            hidden = self.first(x)
            hidden.register_hook(lambda gradient: work(costs.find("backward")))
            return self.second(hidden)

    class Planted(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            work(costs.find("optimizer"))
            return super().step(closure)

    model: Any = Model()
    if options.ranks > 1:
        torch.distributed.init_process_group("gloo")
    if options.ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer, sent = Planted(model.parameters(), lr=1e-3), torch.ones(EXCHANGED)
    data: Any = Samples(options)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=options.workers)
    for costs.step, batch in enumerate(loader):
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for _ in range(int(costs.find("exchanges"))):
            torch.distributed.all_reduce(sent)
        optimizer.step()
    if options.ranks > 1:
        torch.distributed.destroy_process_group()


def train_paddle(options: argparse.Namespace) -> None:
    paddle: Any = importlib.import_module("paddle")
    paddle.set_device("cpu")
    paddle.seed(0)
    costs = Costs(options)

    class Model(paddle.nn.Layer):  # type: ignore[misc]  # Paddle has no types
        def __init__(self) -> None:
            super().__init__()
            self.first = paddle.nn.Linear(WIDTH, 1)

        def forward(self, x: Any) -> Any:
            work(costs.find("forward"))
            return self.first(x)

    class Data(Samples, paddle.io.Dataset):  # type: ignore[misc]  # as above
        pass

    model = Model()
    optimizer = paddle.optimizer.SGD(1e-3, parameters=model.parameters())
    loader = paddle.io.DataLoader(Data(options), batch_size=BATCH, num_workers=options.workers)
    for costs.step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("torch", "paddle"), default="torch")
    for name in ("data-sleep", "data-work", "forward", "backward", "optimizer", "late"):
        parser.add_argument(f"--{name}", type=float, default=0.0, metavar="MS")
    for name, default in (("steps", 200), ("workers", 0), ("exchanges", 0), ("ranks", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--halved", default="", help="the cost that is halved in every other part")
    parser.add_argument("--ddp", action="store_true")
    options = parser.parse_args()
    if options.framework == "torch":
        train_torch(options)
    else:
        train_paddle(options)


if __name__ == "__main__":
    main()
