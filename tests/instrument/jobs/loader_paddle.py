"""A Paddle script whose batches take known times, in workers or in the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset, IterableDataset

from tests.instrument.jobs.own_clock import BATCH_SIZE, OwnBatch

BATCHES = 8
OWN = OwnBatch()


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> Any:
        OWN.read(index)
        return np.full(2, float(index))


class SlowStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        data = Slow()
        return (data[index] for index in range(len(data)))


def collate(samples: list[Any]) -> Any:
    """The batch, with what it saw of its making in each row."""
    OWN.collate()
    batch = np.stack(samples)
    return np.hstack([batch, np.tile(OWN.figures(), (len(batch), 1))])


def main() -> None:
    model = paddle.nn.Linear(2, 1)
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
            model(images[:, :2].astype("float32")).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
            print("batch", images.numpy().tolist(), flush=True)


if __name__ == "__main__":
    main()
