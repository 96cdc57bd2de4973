"""Click prediction in Paddle: embeddings and wide layers, trained by a hand-written loop.

The loop knows no trainer class. Its batches come from an endless data set through a data loader,
or from a thread of the job's own.
"""

from __future__ import annotations

import functools
import os
import queue
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from job_parts import (
    Mishaps,
    Options,
    OwnClock,
    is_due,
    parse,
    read_options,
    wait_for_storage,
)
from paddle.distributed.fleet.utils import recompute
from paddle.io import DataLoader, IterableDataset
from paddle.nn import functional as nn_functional

RANK = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
FIELDS, VALUES, SIZE = 10, 1_000, 16


class Clicks(IterableDataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Rows of a log without end, each parsed by Python code."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        rng = np.random.default_rng([self.options.seed, RANK])
        while True:
            wait_for_storage(self.options)
            raw = rng.integers(0, VALUES, 40).tolist()
            row = parse(raw, self.options.parsing)[:FIELDS]
            yield np.array(row, dtype=np.int64) % VALUES, np.float32(sum(row) % 2)


def collate(samples: Any, passes: int) -> Any:
    rows, labels = zip(*samples, strict=True)
    for row in rows:
        parse(row.tolist() * 4, passes)
    return [np.stack(rows), np.array(labels, dtype=np.float32)]


class Network(paddle.nn.Layer):
    """Embeds each field, and sends all of them through a few wide layers."""

    def __init__(self, options: Options, mishaps: Mishaps) -> None:
        super().__init__()
        width = options.width
        self.fields = paddle.nn.Embedding(VALUES, SIZE)
        self.first = paddle.nn.Linear(FIELDS * SIZE, width)
        self.deep = paddle.nn.LayerList(
            [
                paddle.nn.Sequential(
                    paddle.nn.Linear(width, width),
                    paddle.nn.BatchNorm1D(width),
                    paddle.nn.GELU(),
                    paddle.nn.Linear(width, width),
                )
                for _ in range(options.layers)
            ]
        )
        self.last = paddle.nn.Linear(width, 1)
        self.again, self.mishaps = options.recompute, mishaps

    def forward(self, rows: Any) -> Any:
        if self.training:
            self.mishaps.late("forward")
        hidden = nn_functional.relu(self.first(self.fields(rows).flatten(1)))
        for layer in self.deep:
            if self.again and self.training:
                hidden = hidden + recompute(layer, hidden, preserve_rng_state=False)
            else:
                hidden = hidden + layer(hidden)
        if self.training:
            hidden.register_hook(self._late)
        return self.last(hidden).squeeze(1)

    def _late(self, gradient: Any) -> None:
        self.mishaps.late("backward")


def made_by_thread(data: Clicks, options: Options) -> Iterator[Any]:
    """Yield batches that a thread of the job makes, a few ahead."""
    ready: queue.Queue[Any] = queue.Queue(3)

    def make() -> None:
        rows = iter(data)
        while True:
            ready.put(collate([next(rows) for _ in range(options.batch)], options.collating))

    threading.Thread(target=make, daemon=True).start()
    while True:
        yield [paddle.to_tensor(part) for part in ready.get()]


def batches_of(options: Options) -> Iterator[Any]:
    data = Clicks(options)
    if options.own_thread:
        return made_by_thread(data, options)
    together: Any = functools.partial(collate, passes=options.collating)
    return iter(
        DataLoader(
            data,
            batch_size=options.batch,
            num_workers=options.workers,
            collate_fn=together,
            use_buffer_reader=False,
        )
    )


def clip(options: Options, parameters: list[Any]) -> None:
    """Clip the gradients to a norm of 1, slice by slice if the options say so."""
    parts = 24 if options.clip == "python" else 1
    squares = 0.0
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    with paddle.no_grad():
        for gradient in gradients:
            for part in gradient.flatten().chunk(parts if gradient.size % parts == 0 else 1):
                squares += float((part * part).sum())
        factor = min(1.0, 1 / (squares**0.5 + 1e-6))
        for gradient in gradients:
            gradient.scale_(factor)


def average(averages: list[Any], parameters: list[Any]) -> None:
    """Move averages at several rates a little towards the parameters."""
    with paddle.no_grad():
        for rate in np.linspace(0.9, 0.999, 12).tolist():
            for place, parameter in enumerate(parameters):
                averages[place] = averages[place] * rate + parameter * (1 - rate)


def evaluate(network: Network, options: Options) -> None:
    """Compute the loss on a few batches that no loader makes."""
    network.eval()
    rows = iter(Clicks(options))
    with paddle.no_grad():
        for _ in range(6):
            inputs, labels = collate([next(rows) for _ in range(options.batch)], 0)
            scores = network(paddle.to_tensor(inputs))
            float(nn_functional.binary_cross_entropy_with_logits(scores, paddle.to_tensor(labels)))
    network.train()


def save(network: Network, optimizer: Any, options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ballast = paddle.zeros([options.checkpoint_mb * 250_000])
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        paddle.save({**state, "more": ballast}, str(Path(folder, "clicks.pdparams")))


def train(options: Options, clock: OwnClock) -> None:
    mishaps = Mishaps(options, clock, RANK)
    network = Network(options, mishaps)
    parallel = "PADDLE_TRAINER_ID" in os.environ
    model: Any = paddle.DataParallel(network) if parallel else network
    parameters = network.parameters()
    averages = [parameter.detach().clone() for parameter in parameters]
    rate = paddle.optimizer.lr.LinearWarmup(1e-3, 50, 0.0, 1e-3)
    optimizer = paddle.optimizer.AdamW(learning_rate=rate, parameters=parameters)
    batches = batches_of(options)
    for step in range(options.steps):
        mishaps.late("before_batch")
        with clock.time("data"):
            rows, labels = next(batches)
        with clock.time("forward"):
            labels = labels.astype(paddle.get_default_dtype())
            loss = nn_functional.binary_cross_entropy_with_logits(model(rows), labels)
        with clock.time("backward"):
            loss.backward()
        with clock.time("clip"):
            clip(options, parameters)
        with clock.time("planted"):
            for parameter in parameters[: options.reads]:
                if parameter.grad is not None:
                    [float(parameter.grad.mean()) for _ in range(12)]
        mishaps.before_step()
        with clock.time("optimizer"):
            optimizer.step()
            optimizer.clear_grad()
            rate.step()
        with clock.time("planted"):
            if options.average:
                average(averages, parameters)
            if is_due(step, options.evaluate_every):
                evaluate(network, options)
            if is_due(step, options.checkpoint_every):
                save(network, optimizer, options)
        mishaps.after_step(step, float(loss))
        clock.end_step()


def main() -> None:
    options = read_options()
    paddle.seed(options.seed)
    paddle.set_default_dtype("float64" if options.float64 else "float32")
    if "PADDLE_TRAINER_ID" in os.environ:
        dist.init_parallel_env()
    clock = OwnClock()
    train(options, clock)
    clock.write(RANK)


if __name__ == "__main__":
    main()
