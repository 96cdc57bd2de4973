"""Train in Paddle with two workers whose batches have a slow line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset, IterableDataset

SLOW_S = 0.02


def make(index: int) -> Any:
    time.sleep(SLOW_S)  # slow in a worker
    return np.full((4,), float(index % 7), dtype="float32")


class Items(Dataset[Any]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        return make(index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from map(make, range(100_000))


def main(steps: int, kind: str) -> None:
    paddle.seed(0)
    paddle.device.set_device("cpu")
    model = paddle.nn.Linear(4, 4)
    optimizer = paddle.optimizer.SGD(0.001, parameters=model.parameters())
    items: Any = Stream() if kind == "stream" else Items()
    loader = DataLoader(items, batch_size=2, num_workers=2, use_shared_memory=kind == "shared")
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        print(float(loss).hex(), flush=True)
        if step == steps:
            break


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
