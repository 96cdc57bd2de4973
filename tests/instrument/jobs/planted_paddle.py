"""A Paddle script on one or two ranks; every third step sleeps in one phase, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.io import DataLoader, Dataset

BATCH = 4


class Sleeper:
    """Sleeps in each phase in turn, in every third step, so that its effects are over by then."""

    def __init__(self, phases: list[str], seconds: float) -> None:
        self.phases = phases
        self.seconds = seconds
        self.step = 0

    def at(self, phase: str, step: int | None = None) -> None:
        """Paddle's loader reads ahead on a thread, which must say which step it reads for."""
        turn, pause = divmod((self.step if step is None else step) % (3 * len(self.phases)), 3)
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


class Data(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Seeded samples; the first of a batch may be slow to read."""

    def __init__(self, sleeper: Sleeper, steps: int) -> None:
        self.sleeper = sleeper
        self.rows = np.random.default_rng(0).standard_normal((steps * BATCH, 64)).astype("float32")

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index % BATCH == 0:
            self.sleeper.at("data", index // BATCH)
        return self.rows[index], np.array([index % 10])

    def __len__(self) -> int:
        return len(self.rows)


class Model(paddle.nn.Layer):
    """A small perceptron that may be slow forwards and backwards."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self.sleeper = sleeper
        self.first, self.second = paddle.nn.Linear(64, 128), paddle.nn.Linear(128, 10)

    def forward(self, inputs: Any) -> Any:
        self.sleeper.at("forward")
        hidden = paddle.nn.functional.relu(self.first(inputs))
        hidden.register_hook(lambda gradient: self.sleeper.at("backward"))
        return self.second(hidden)


class Optimizer(paddle.optimizer.SGD):
    sleeper: Sleeper

    def step(self) -> None:
        self.sleeper.at("optimizer")
        super().step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phases", default="forward")
    parser.add_argument("--sleep-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    paddle.seed(0)
    sleeper = Sleeper(args.phases.split(","), args.sleep_ms / 1e3)
    model: Any = Model(sleeper)
    if "PADDLE_TRAINER_ID" in os.environ:
        dist.init_parallel_env()
        model = paddle.DataParallel(model)
    optimizer = Optimizer(learning_rate=0.01, parameters=model.parameters())
    optimizer.sleeper = sleeper
    own, batches = (
        OwnClock(),
        iter(
            DataLoader(
                Data(sleeper, args.steps), batch_size=BATCH, num_workers=0, use_buffer_reader=False
            )
        ),
    )
    for number in range(args.steps):
        with own.time("data"):
            inputs, labels = next(batches)
        sleeper.step = number
        with own.time("forward"):
            loss = paddle.nn.functional.cross_entropy(model(inputs), labels)
        with own.time("backward"):
            loss.backward()
        with own.time("optimizer"):
            optimizer.step()
        optimizer.clear_grad()
    own.tell(int(os.environ.get("PADDLE_TRAINER_ID", "0")))


if __name__ == "__main__":
    main()
