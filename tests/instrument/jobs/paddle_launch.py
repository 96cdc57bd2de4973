"""A DataParallel script with gradient accumulation, for Paddle's launcher."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.io import DataLoader, Dataset, DistributedBatchSampler


class Numbers(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Seeded images with their labels, the same on every rank."""

    def __init__(self, count: int = 256) -> None:
        random = np.random.default_rng(0)
        self.images = random.standard_normal((count, 1, 8, 8)).astype("float32")
        self.labels = random.integers(0, 10, (count, 1))

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.images[index], self.labels[index]

    def __len__(self) -> int:
        return len(self.images)


def build() -> Any:
    nn = paddle.nn
    return nn.Sequential(
        nn.Conv2D(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--late-ms", type=float, default=0.0)
    parser.add_argument("--fail", type=int, default=0)
    parser.add_argument("--bucket-mb", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_parallel_env()
    paddle.seed(0)
    model = build()
    if args.late_ms and dist.get_rank() == 1:
        model[3].weight.register_hook(lambda gradient: time.sleep(args.late_ms / 1e3))
    parallel = paddle.DataParallel(model, comm_buffer_size=1, last_comm_buffer_size=args.bucket_mb)
    optimizer = paddle.optimizer.Momentum(learning_rate=0.05, parameters=parallel.parameters())
    data = Numbers()
    losses = []
    for number, (images, labels) in enumerate(
        DataLoader(data, batch_sampler=DistributedBatchSampler(data, batch_size=4))
    ):
        last = (number + 1) % args.accumulate == 0
        with contextlib.nullcontext() if last else parallel.no_sync():
            loss = paddle.nn.functional.cross_entropy(parallel(images), labels) / args.accumulate
            loss.backward()
        losses.append(float(loss))
        if last:
            optimizer.step()
            optimizer.clear_grad()
        if number + 1 == args.steps * args.accumulate:
            break
    Path(f"losses{dist.get_rank()}").write_text(repr(losses))
    if args.fail and dist.get_rank() == 1:
        for _ in range(30):  # in pieces, of which a pause of the machine costs one
            time.sleep(0.05)  # what was recorded longer than a second ago is on disk
        os._exit(args.fail)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
