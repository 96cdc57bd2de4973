"""Arithmetic with intervals of time that may overlap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profkit.frame.estimate import Floats, Ints


def union(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Join intervals that touch or overlap; the result is sorted and has no overlaps."""
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), dtype=bool)
    opens[1:] = starts[1:] > reach[:-1]
    last = np.append(np.flatnonzero(opens)[1:] - 1, len(starts) - 1)
    return starts[opens], reach[last]


def union_length(starts: Ints, ends: Ints) -> int:
    """Return how much time lies in at least one interval."""
    if not len(starts):
        return 0
    lows, highs = union(starts, ends)
    return int((highs - lows).sum())


def subtract_union(starts: Ints, ends: Ints, opens: Ints, closes: Ints) -> tuple[Ints, Ints]:
    """Return the parts of the intervals that lie in no window, sorted and without overlaps."""
    if not len(starts) or not len(opens):
        return union(starts, ends) if len(starts) else (starts, ends)
    lows, highs = union(starts, ends)
    opens, closes = union(opens, closes)
    # The complement of the windows, as far as the intervals reach.
    free_from = np.append(min(lows[0], opens[0]), closes)
    free_until = np.append(opens, max(highs[-1], closes[-1]))
    first = np.searchsorted(free_until, lows, side="right")
    last = np.searchsorted(free_from, highs, side="left")
    row, piece = ranges(first, np.maximum(first, last))
    starts = np.maximum(lows[row], free_from[piece])
    ends = np.minimum(highs[row], free_until[piece])
    kept = ends > starts
    return starts[kept], ends[kept]


def common_parts(starts: Ints, ends: Ints, opens: Ints, closes: Ints) -> tuple[Ints, Ints]:
    """Return the parts of the intervals that lie in a window, sorted and without overlaps."""
    return subtract_union(starts, ends, *subtract_union(starts, ends, opens, closes))


def ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return every number from each `first` to before its `last`, and the place of that pair."""
    counts = last - first
    row = np.repeat(np.arange(len(first)), counts)
    skipped = np.repeat(np.cumsum(counts) - counts, counts)
    return row, first[row] + np.arange(len(row)) - skipped


def covered_each(starts: Ints, ends: Ints, opens: Ints, closes: Ints) -> Floats:
    """Return how much of each window, from `opens` to `closes`, lies in an interval."""
    if not len(starts):
        return np.zeros(len(opens))
    return covered_by(*union(starts, ends), opens, closes)


def covered_by(lows: Ints, highs: Ints, opens: Ints, closes: Ints) -> Floats:
    """Return the same of intervals that are joined already."""
    return np.asarray(_length_before(closes, lows, highs) - _length_before(opens, lows, highs))


def _length_before(points: Ints, lows: Ints, highs: Ints) -> Floats:
    """Return how much of the joined intervals lies before each point."""
    before = np.concatenate([[0], np.cumsum(highs - lows)])
    place = np.searchsorted(lows, points, side="right")
    beyond = np.maximum(0, highs[np.maximum(place - 1, 0)] - points) * (place > 0)
    return np.asarray(before[place] - beyond, dtype=np.float64)


def split_lanes(order: Ints, lane: Ints) -> Iterator[Ints]:
    """Yield the rows of each lane; `order` sorts the rows by lane first."""
    yield from np.split(order, np.flatnonzero(np.diff(lane[order])) + 1)
