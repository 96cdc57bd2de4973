"""Measure what timing PyTorch's data loader costs per batch, next to the bare loader.

Batches are as small as possible, so that the ratio is the worst one.

    python benchmarks/loader.py [--rounds 15] [--batches 400]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, _DatasetKind

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.workers import hook_workers
from profkit.instrument.guard import FAILURES, Patches
from profkit.instrument.loading.ring import Ring
from profkit.instrument.loading.worker_loop import WorkerMeter
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker

BATCH_SIZE = 8
LIMIT_US = 50.0


class Rows(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self._rows = torch.randn(count, 64)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)


@contextlib.contextmanager
def opened() -> Iterator[MemorySink]:
    """Install the loader's hooks alone, as `profkit run` does."""
    patches, sink = Patches(), MemorySink()
    tracker = Tracker(Recorder(sink))
    hook_workers(patches, Seams(tracker, sink.appender("collectives"), sink.appender("samples")))
    try:
        yield sink
    finally:
        patches.undo()
        tracker.finish()


def time_epoch(workers: int, batches: int) -> tuple[float, float]:
    """Return wall and CPU microseconds of the loop per batch, once the workers run."""
    loader = DataLoader(Rows(batches * BATCH_SIZE), batch_size=BATCH_SIZE, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    wall, processor = time.perf_counter_ns(), time.thread_time_ns()
    count = sum(1 for _ in iterator)
    return (time.perf_counter_ns() - wall) / count / 1e3, (
        time.thread_time_ns() - processor
    ) / count / 1e3


def compare(workers: int, rounds: int, batches: int) -> dict[str, float]:
    """Return medians over rounds in which both kinds alternate, after one warm-up round."""
    bare, with_profkit = [], []
    for turn in range(rounds + 1):
        without = time_epoch(workers, batches)
        with opened() as sink:
            times = time_epoch(workers, batches)
        if len(sink.rows["spans"]) < 3 * batches:
            raise SystemExit(f"rows are missing: {dict(FAILURES)}")
        if turn:
            bare.append(without)
            with_profkit.append(times)
    return _figures(bare, with_profkit)


def _figures(
    bare: list[tuple[float, float]], with_profkit: list[tuple[float, float]]
) -> dict[str, float]:
    figures: dict[str, float] = {}
    for place, name in enumerate(("wall", "loop_processor")):
        without, with_it = (
            statistics.median(times[place] for times in kind) for kind in (bare, with_profkit)
        )
        added = statistics.median(
            after[place] - before[place] for before, after in zip(bare, with_profkit, strict=True)
        )
        ratio = statistics.median(
            after[place] / before[place] for before, after in zip(bare, with_profkit, strict=True)
        )
        figures |= {
            f"{name}_bare_us": without,
            f"{name}_us": with_it,
            f"{name}_added_us": added,
            f"{name}_ratio": ratio,
        }
    return {name: round(value, 3) for name, value in figures.items()}


def time_worker(batches: int) -> float:
    """Return the CPU microseconds that profkit adds to a worker per batch."""
    fetcher = _DatasetKind.create_fetcher(
        _DatasetKind.Map,
        Rows(1),
        auto_collation=True,
        collate_fn=lambda samples: samples,
        drop_last=False,
    )
    meter = WorkerMeter(0, Ring.create(1, 2))
    note = meter.numbered(lambda task: task)
    start = time.thread_time_ns()
    for number in range(batches):
        note((number, [0]))
        batch = meter.begin(fetcher)
        fetcher.collate_fn([])
        if batch is not None:
            meter.end(batch)
    return (time.thread_time_ns() - start) / batches / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {
        f"{workers} workers": compare(workers, options.rounds, options.batches)
        for workers in (0, 2)
    }
    in_worker = statistics.median(time_worker(options.batches) for _ in range(options.rounds))
    print(
        json.dumps({**rows, "in a worker": {"processor_added_us": round(in_worker, 3)}}, indent=2)
    )
    return 0 if all(row["loop_processor_added_us"] <= LIMIT_US for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
