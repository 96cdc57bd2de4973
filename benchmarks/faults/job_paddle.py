"""A small training job in Paddle: one process, or ranks under Paddle's launcher."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from job_parts import CLASSES, Garbage, Options, OwnClock, Pictures, own_core, place_worker
from paddle.io import BatchSampler, DataLoader, Dataset, Subset
from paddle.nn import functional as nn_functional

RANK = int(os.environ.get("PADDLE_TRAINER_ID", "0"))


class Data(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    def __init__(self, pictures: Pictures) -> None:
        super().__init__()
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        return self.pictures.load(index)


def _collate(samples: Any) -> Any:
    """Drop truncated images, as many jobs do."""
    pictures, labels = zip(*(sample for sample in samples if sample is not None), strict=True)
    return [np.stack(pictures), np.array(labels)]


COLLATE: Any = _collate
"""Paddle's type for it wants names of parameters that its own functions do not have."""


class Model(paddle.nn.Layer):
    """A small convolutional network. Its middle can be cut into many operators."""

    def __init__(self, options: Options, clock: OwnClock) -> None:
        super().__init__()
        self.options, self.clock = options, clock
        width = options.width
        self.stem = paddle.nn.Conv2D(3, width, 3, padding=1)
        self.deep = paddle.nn.LayerList(
            [paddle.nn.Conv2D(width, width, 3, padding=1) for _ in range(4)]
        )
        self.wide, self.narrow = (
            paddle.nn.Linear(width, 40 * width),
            paddle.nn.Linear(40 * width, width),
        )
        self.head = paddle.nn.Linear(width, CLASSES)
        self.late = ""

    def forward(self, pictures: Any) -> Any:
        if self.late == "forward":
            self.clock.plant(self.options.late_ms)
        hidden = nn_functional.max_pool2d(nn_functional.relu(self.stem(pictures)), 2)
        for layer in self.deep:
            hidden = nn_functional.relu(layer(hidden))
        pooled = self._again_and_again(hidden.mean((2, 3)))
        return self.head(pooled + self.narrow(nn_functional.relu(self.wide(pooled))))

    def _again_and_again(self, pooled: Any) -> Any:
        """Send the same few numbers through many small operators that move no data.

        Cutting a tensor would copy it here.
        """
        for _ in range(1, self.options.slices):
            pooled = pooled * 1.0 + 0.0
        return pooled


class Trainer:
    """The loop, with the job's own clock around each of its parts."""

    def __init__(self, options: Options) -> None:
        paddle.seed(options.seed)
        self.options, self.clock = options, OwnClock()
        self.parallel = "PADDLE_TRAINER_ID" in os.environ
        if self.parallel:
            dist.init_parallel_env()
        self.inner = Model(options, self.clock)
        self.model: Any = paddle.DataParallel(self.inner) if self.parallel else self.inner
        self.optimizer = paddle.optimizer.Adam(
            learning_rate=1e-3, parameters=self.inner.parameters()
        )
        self.garbage = Garbage(options)
        self.ballast = (
            paddle.zeros([options.checkpoint_mb * 250_000]) if options.checkpoint_every else None
        )
        self.late = options.late_phase if options.late_rank == RANK else ""

    def train(self) -> None:
        options = self.options
        data = Data(Pictures(options, self._late_input))
        loader = DataLoader(
            data,
            batch_sampler=BatchSampler(data, batch_size=options.batch),
            num_workers=options.workers,
            persistent_workers=options.persistent and options.workers > 0,
            collate_fn=COLLATE,
            worker_init_fn=functools.partial(place_worker, RANK) if options.placed else None,
            use_buffer_reader=False,
        )
        with own_core(RANK, placed=options.placed) as place:
            self._train(loader, place)
        self.clock.write(RANK)

    def _train(self, loader: Any, place: Callable[[int], None]) -> None:
        step = 0
        while step < self.options.steps:
            with self.clock.time("data"):
                batches = iter(loader)
            for number in range(min(self.options.epoch_steps, self.options.steps - step)):
                place(step)
                self._step(batches)
                self._beside(step)
                self.clock.end_step(starts_epoch=number == 0)
                step += 1

    def _late_input(self) -> None:
        if self.late == "input":
            self.clock.plant(self.options.late_ms)

    def _step(self, batches: Iterator[Any]) -> None:
        clock = self.clock
        self.inner.late = self.late
        with clock.time("data"):
            pictures, labels = next(batches)
        with clock.time("forward"):
            loss = nn_functional.cross_entropy(self.model(pictures), labels)
        with clock.time("backward"):
            loss.backward()
        with clock.time("optimizer"):
            self.optimizer.step()
            self.optimizer.clear_grad()

    def _beside(self, step: int) -> None:
        options, clock = self.options, self.clock
        self.garbage.after_step(step, clock)
        if (
            options.checkpoint_every
            and step % options.checkpoint_every == options.checkpoint_every - 1
        ):
            self._save()
        if options.evaluate_every and step % options.evaluate_every == options.evaluate_every - 1:
            with clock.time("planted"):
                self._evaluate()

    def _save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "checkpoint.pdparams")
            state: Any = {
                "model": self.inner.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "ballast": self.ballast,
            }
            with self.clock.time("planted"):
                paddle.save(state, str(path))

    def _evaluate(self) -> None:
        options = self.options
        self.inner.eval()
        self.inner.late = ""
        part = Subset(Data(Pictures(options)), range(options.batch * options.evaluate_batches))
        with paddle.no_grad():
            for pictures, labels in DataLoader(
                part, batch_size=options.batch, collate_fn=COLLATE, num_workers=0
            ):
                nn_functional.cross_entropy(self.inner(pictures), labels)
        self.inner.train()


def main() -> None:
    Trainer(Options.from_environment()).train()


if __name__ == "__main__":
    main()
