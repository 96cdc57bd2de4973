"""An ordinary training script whose loader's workers are no forks: each batch reads, decodes and is collated for known times."""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 4


def work(seconds: float) -> None:
    """Keep a processor busy for so long."""
    end = time.thread_time_ns() + int(seconds * 1e9)
    while time.thread_time_ns() < end:
        pass


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10 * BATCH_SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % BATCH_SIZE == 0:
            time.sleep(0.02)
            work(0.02)
        return torch.tensor([float(index), float(hasattr(torch.nn.Module.__call__, "__wrapped__"))])


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """The batch, with the milliseconds that this took in its last column."""
    start = time.perf_counter_ns()
    time.sleep(0.015)
    return torch.nn.functional.pad(torch.stack(samples), (0, 1), value=(time.perf_counter_ns() - start) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("start_method")
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(
        Slow(), batch_size=BATCH_SIZE, num_workers=1, collate_fn=collate, multiprocessing_context=args.start_method, persistent_workers=args.persistent
    )
    for _ in range(2 if args.persistent else 1):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            print("batch", batch.tolist(), flush=True)


if __name__ == "__main__":
    main()
