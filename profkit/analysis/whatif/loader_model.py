"""The workers of a data loader: when a batch is ready, if they or the loop were faster.

Workers take turns. A worker begins a batch when it is done with its last one and the loop has taken
a batch that was prefetched. So the loop waits only if making a batch takes longer than its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import codes_of, durations, places_in, step_places
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exposed import INPUT_PIECES
from profkit.trace.sampled import BLOCK
from profkit.vocab import LOADER_WORKER

MAKING = INPUT_PIECES[:-1]
"""The pieces that make a batch; the last one is the time that it lies ready."""

USUAL_PREFETCH = 2
"""Batches that each worker makes in advance, unless the run states another number."""

MOST_PREFETCH = 1_000
"""A larger number is a mistake in the file."""

MIN_SEEN_SHARE = 0.9
"""The making of at least this share of the batches must have been recorded."""

FEWEST_LATE = 5
"""Fewer batches that the loop waited for do not show what handing them over takes."""

FLOOR = 0.1
"""The quantile of the waits that counts as the cost of taking a batch that is ready."""


@dataclass(frozen=True, eq=False)
class LoaderLine:
    """The making of one rank's batches. Times are in ns, by step."""

    pieces: Floats
    """By (piece, step), in the order of `MAKING`."""
    workers: int
    """0 if the training loop makes its batches itself."""
    prefetch: int
    handover: float
    """From when a batch is made until the loop can take it."""
    taking: float
    """What taking a ready batch costs the loop."""
    between: float = 0.0
    """What a worker that is never idle takes from one batch to the next."""

    @property
    def making(self) -> Floats:
        return np.asarray(self.pieces.sum(axis=0))

    def waits(self, busy: Floats) -> Floats:
        """Return the loop's wait in each step if the rest of the step takes `busy`."""
        making = self.making.tolist()
        if not self.workers:
            return np.asarray(self.making + self.taking)
        found = [0.0] * len(making)
        for _ in range(2):  # what the first pass leaves in the queue is where the second begins
            found = self._pass(making, busy.tolist(), found)
        return np.asarray(found)

    def _pass(
        self, making: Sequence[float], busy: Sequence[float], last: Sequence[float]
    ) -> list[float]:
        """Return the waits of one pass; the state before it is that after `last`."""
        ahead, workers, count = self.workers * self.prefetch, self.workers, len(making)
        warm = min(count, 4 * ahead)
        order = [*range(count - warm, count), *range(count)]
        now, free, taken, waits = 0.0, [0.0] * workers, list[float](), list[float]()
        for place, step in enumerate(order):
            sent = taken[place - ahead] if place >= ahead else -max(last, default=0.0)
            worker = place % workers
            free[worker] = max(free[worker] + self.between, sent) + making[step]
            ready = free[worker] + self.handover
            wait = self.taking + max(0.0, ready - now)
            now += wait
            taken.append(now)
            now += busy[step]
            waits.append(wait)
        return waits[warm:]


def find_loader(data: pa.Table, stated: object, used: Ints) -> LoaderLine | None:
    """Return how a rank's batches are made, or `None` if nobody timed the loader.

    `data` are the rank's spans of that phase. `stated` is the run's setting of how many batches
    each worker prefetches.
    """
    piece = places_in(data["name"], INPUT_PIECES)
    if not (piece >= 0).any():
        return None
    place, length = step_places(data, used), durations(data)
    sums = np.zeros((len(INPUT_PIECES), len(used)))
    kept = (piece >= 0) & (place >= 0)
    np.add.at(sums, (piece[kept], place[kept]), length[kept])
    made = sums[:-1].sum(axis=0) > 0
    if not len(used) or made.mean() < MIN_SEEN_SHARE:
        return None
    sums[:-1, ~made] = np.median(sums[:-1, made], axis=1)[:, None]
    workers = count_workers(data.filter(pa.array(kept)))
    outer = (piece < 0) & (place >= 0) & (data["depth"].to_numpy() == 0)
    waits = np.bincount(place[outer], weights=length[outer], minlength=len(used)).astype(float)
    if not workers:
        taking = float(np.median(waits - sums[:-1].sum(axis=0)))
        return LoaderLine(sums[:-1], 0, USUAL_PREFETCH, 0.0, max(0.0, taking))
    prefetch = USUAL_PREFETCH
    if isinstance(stated, int) and 0 < stated < MOST_PREFETCH:
        prefetch = stated
    return LoaderLine(sums[:-1], workers, prefetch, *find_overheads(data, place, piece, waits))


def find_overheads(data: pa.Table, place: Ints, piece: Ints, waits: Floats) -> tuple[float, ...]:
    """Return what it takes to hand a batch over, to take it, and to begin the next one.

    A batch that was still being made when the loop began to wait shows the first. Without any, it
    counts as nothing, because prefetching hides it. If the loop always waits, no step shows a batch
    that is ready, and no worker is ever idle.
    """
    start, length = data["start_ns"].to_numpy(), durations(data)
    outer = (piece < 0) & (place >= 0) & (data["depth"].to_numpy() == 0)
    begins = np.full(len(waits), np.iinfo(np.int64).max)
    np.minimum.at(begins, place[outer], start[outer])
    queued = (piece == len(MAKING)) & (place >= 0)
    late = queued & (start >= begins[place])
    handover, taking, between = 0.0, float(np.quantile(waits, FLOOR)), 0.0
    if late.sum() >= FEWEST_LATE:
        handover = float(np.median(length[late]))
    lay = np.setdiff1d(np.arange(len(waits)), place[late])
    if len(lay) >= FEWEST_LATE:
        taking = float(np.median(waits[lay]))
    if late.sum() > len(waits) / 2:
        rest = begins[place] + waits[place] - (start + length)
        taking = float(np.quantile(np.maximum(rest[late], 0.0), FLOOR))
        making = data.filter(pa.array((piece >= 0) & (piece < len(MAKING))))
        between = time_between_batches(making) * batches_per_step(piece[place >= 0], len(waits))
    return handover, taking, between


def time_between_batches(pieces: pa.Table) -> float:
    """Return the usual time from the end of a worker's batch to the start of its next one.

    A thinned run lacks blocks of steps, with the batches that workers made meanwhile.
    """
    gaps = []
    rows = pieces.sort_by("start_ns")
    numbers = rows["step"].fill_null(-1).to_numpy()
    known = np.unique(numbers)
    block = np.cumsum(np.diff(known, prepend=known[:1]) > BLOCK)[np.searchsorted(known, numbers)]
    worker, piece = codes_of(rows["thread"]), places_in(rows["name"], MAKING)
    for each in np.unique(worker):
        mine = np.flatnonzero(worker == each)
        starts, ends = rows["start_ns"].to_numpy()[mine], rows["end_ns"].to_numpy()[mine]
        next_batch = np.diff(piece[mine]) <= 0  # a batch is read, decoded and collated
        next_batch &= np.diff(block[mine]) == 0
        gaps.append((starts[1:] - ends[:-1])[next_batch])
    whole = np.concatenate([*gaps, np.zeros(0)])
    if not len(whole):
        return 0.0
    return max(0.0, float(np.median(whole)))


def batches_per_step(piece: Ints, steps: int) -> int:
    """Return how many batches a step takes, by the piece that most of them have."""
    counts = np.bincount(piece[piece >= 0], minlength=1)
    return max(1, round(int(counts.max()) / steps))


def count_workers(pieces: pa.Table) -> int:
    threads = pc.unique(pieces["thread"].cast(pa.string()))
    workers = pc.sum(pc.starts_with(threads, pattern=LOADER_WORKER)).as_py()
    return int(workers or 0)
