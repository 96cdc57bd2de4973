"""What the probe has written of each process of a program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from registry import BACKWARDS, LEAST

LEAST_SHARE = 0.5
"""A loader trains if a backward follows so many of its batches; one-ahead loops shift a few."""

LOADING = ("data", "open", "exhausted")

Ints = npt.NDArray[np.int64]


@dataclass
class Process:
    """One process that computed gradients. Times are in ns of `perf_counter`."""

    pid: int
    losses: list[str | None] = field(default_factory=list)
    steps: Counter[int] = field(default_factory=Counter)
    """The number of steps of each optimizer."""
    times: dict[str, list[tuple[int, int, object]]] = field(default_factory=dict)
    """The start and end of each event and what it is about, by its kind."""
    loaders: set[int] = field(default_factory=set)
    """The loaders whose batches the process trained on."""
    batches: Counter[int] = field(default_factory=Counter)
    """The batches of each loader that the process trained on."""

    def count(self, counts: str) -> int:
        """Return the number of steps of the loop."""
        if counts == BACKWARDS or not self.steps:
            return len(self.losses)
        numbers = self.steps.values()
        return min(numbers) if counts == LEAST else max(numbers)

    def inside(self, kinds: Sequence[str], starts: Ints, ends: Ints) -> float:
        """Return how many ns of some kinds of events lie within these windows.

        Of waits for a batch, only those for loaders that the process trains on count.
        """
        found = []
        for kind in kinds:
            for start, end, about in self.times.get(kind, []):
                if kind not in LOADING or about in self.loaders:
                    found.append((start, end))
        total, reached = 0.0, 0
        for start, end in sorted(found):
            overlap = np.minimum(ends, end) - np.maximum(starts, max(start, reached))
            total += float(overlap[overlap > 0].sum())
            reached = max(reached, end)
        return total

    @property
    def has_closures(self) -> bool:
        """True if gradients are computed inside of optimizer steps."""
        backwards = np.array([start for start, _, _ in self.times.get("backward", [])])
        for start, end, _ in self.times.get("step", [])[:3]:
            if ((backwards > start) & (backwards < end)).any():
                return True
        return False


@dataclass(frozen=True)
class Seen:
    """What the probe saw of one side of a program."""

    processes: tuple[Process, ...]
    samples: int | None
    """The number of samples in batches that were trained on; `None` if nothing tells it."""


def read(folder: Path) -> Seen:
    """Read the files of all processes."""
    files = {}
    for path in folder.glob("*.jsonl"):
        files[int(path.stem)] = list(_lines(path))
    found = (_read_process(pid, events) for pid, events in sorted(files.items()))
    processes = tuple(process for process in found if process.losses)
    sizes: dict[tuple[int, int], Counter[int | None]] = {}
    for events in files.values():
        for kind, *rest in events:
            if kind == "collate":
                sizes.setdefault((rest[1], rest[0]), Counter())[rest[2]] += 1
    samples: int | None = None
    for process in processes:
        for loader in process.loaders:
            counts = sizes.get((process.pid, loader), Counter())
            if None in counts:
                return Seen(processes, None)
            usual = max(counts, key=counts.__getitem__, default=0) or 0
            total = sum((size or 0) * count for size, count in counts.items())
            # Those that were fetched and not trained on have the usual size.
            unused = sum(counts.values()) - process.batches[loader]
            samples = (samples or 0) + total - usual * max(0, unused)
    return Seen(processes, samples)


def _lines(path: Path) -> Iterator[list[Any]]:
    for line in path.read_text(encoding="utf-8").rstrip("\0").splitlines(keepends=True):
        if line.endswith("\n"):  # a process that was killed leaves half a line
            yield json.loads(line)


def _read_process(pid: int, events: Iterable[list[Any]]) -> Process:
    process = Process(pid)
    fetched: Counter[int] = Counter()
    trained: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    last: int | None = None
    for kind, *rest in events:
        if kind == "collate":
            continue
        start, end, value = rest
        process.times.setdefault(str(kind), []).append((start, end, value))
        if kind == "step":
            process.steps[value] += 1
        elif kind == "open":
            process.batches[value] -= waiting.pop(value, 0)
        elif kind == "data" and value is not None:
            last = value
            process.batches[value] += 1
            waiting[value] += 1
            fetched[value] += 1
        elif kind == "backward":
            process.losses.append(value)
            waiting.clear()
            if last is not None:
                trained[last] += 1
                last = None
    process.batches.subtract(waiting)
    for loader, count in trained.items():
        if count >= LEAST_SHARE * fetched[loader] or len(fetched) == 1:
            process.loaders.add(loader)
    return process
