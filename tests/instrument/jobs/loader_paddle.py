"""An ordinary Paddle training script: each batch reads, decodes and is collated for known times, in workers and without."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset, IterableDataset

BATCH_SIZE, BATCHES = 4, 8


def work(seconds: float) -> None:
    """Keep a processor busy for so long."""
    end = time.thread_time_ns() + int(seconds * 1e9)
    while time.thread_time_ns() < end:
        pass


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> Any:
        if index % BATCH_SIZE == 0:
            time.sleep(0.02)
            work(0.02)
        return np.full(2, float(index), dtype="float32")


class SlowStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        data = Slow()
        return (data[index] for index in range(len(data)))


def collate(samples: list[Any]) -> Any:
    """The batch, with the milliseconds that this took in its last column."""
    start = time.perf_counter_ns()
    time.sleep(0.015)
    batch = np.stack(samples)
    return np.pad(batch, ((0, 0), (0, 1)), constant_values=(time.perf_counter_ns() - start) / 1e6)


def main() -> None:
    model = paddle.nn.Linear(3, 1)
    optimizer = paddle.optimizer.SGD(learning_rate=1e-6, parameters=model.parameters())
    make: Any = DataLoader
    loaders = [
        make(Slow(), batch_size=BATCH_SIZE, num_workers=0, collate_fn=collate),
        make(Slow(), batch_size=BATCH_SIZE, num_workers=2, collate_fn=collate),
        make(SlowStream(), batch_size=BATCH_SIZE, num_workers=2, collate_fn=collate),
    ]
    for loader in loaders:
        for batch in loader:
            images = batch[0] if isinstance(batch, list) else batch
            model(images).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
            print("batch", images.numpy().tolist(), flush=True)


if __name__ == "__main__":
    main()
