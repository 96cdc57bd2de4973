"""A Paddle training script whose odd steps sleep in one phase. One process, or two ranks under Paddle's launcher."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.io import DataLoader, Dataset

BATCH = 4


class Sleeper:
    """Sleeps in one phase of every odd step."""

    def __init__(self, phase: str, seconds: float) -> None:
        self.phase = phase
        self.seconds = seconds
        self.step = 0
        self.slept: list[float] = []

    def at(self, phase: str, step: int | None = None) -> None:
        """Paddle's loader reads ahead on a thread, which must say itself which step it reads for."""
        if phase == self.phase and (self.step if step is None else step) % 2:
            start = time.perf_counter()
            time.sleep(self.seconds)
            self.slept.append(time.perf_counter() - start)

    def tell(self) -> None:
        """A busy machine wakes a sleeper late: what it really slept is what must be found."""
        if self.slept:
            sys.stdout.write(f"slept ms {1e3 * sorted(self.slept)[len(self.slept) // 2]}\n")  # in one write: ranks share the pipe
            sys.stdout.flush()


class Data(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Seeded samples; the first of a batch may be slow to read."""

    def __init__(self, sleeper: Sleeper, steps: int) -> None:
        self.sleeper = sleeper
        self.rows = np.random.default_rng(0).standard_normal((steps * BATCH, 64)).astype("float32")

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index % (2 * BATCH) == BATCH:
            self.sleeper.at("data", 1)
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
    parser.add_argument("--phase", default="none")
    parser.add_argument("--sleep-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    paddle.seed(0)
    sleeper = Sleeper(args.phase, args.sleep_ms / 1e3)
    model: Any = Model(sleeper)
    if "PADDLE_TRAINER_ID" in os.environ:
        dist.init_parallel_env()
        model = paddle.DataParallel(model)
    optimizer = Optimizer(learning_rate=0.01, parameters=model.parameters())
    optimizer.sleeper = sleeper
    for number, (inputs, labels) in enumerate(DataLoader(Data(sleeper, args.steps), batch_size=BATCH, num_workers=0, use_buffer_reader=False)):
        sleeper.step = number
        loss = paddle.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    sleeper.tell()


if __name__ == "__main__":
    main()
