"""Time by phase between given points of a rank's timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from profkit.analysis.columns import codes_of, places_in
from profkit.analysis.device_clock import find_parents, levels_of
from profkit.analysis.estimate import Ints


def time_between(spans: pa.Table, times: Ints, phases: Sequence[str]) -> Ints:
    """Return the time in each phase between neighbouring times, by (gap, phase, step).

    `times` is by (point, step). The spans are those of one rank; only the thread with the most time
    in phases counts. A span inside one of another phase counts for its own phase alone.
    """
    found = np.zeros((len(times) - 1, len(phases), times.shape[1]), dtype=np.int64)
    if not spans.num_rows or not times.size:
        return found
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    phase, level, thread = places_in(spans["phase"], phases), levels_of(spans), spans["thread"]
    lane = codes_of(thread) + 1  # a span of no thread has a lane of its own
    trains = int(np.argmax(np.bincount(lane, weights=np.where(level, 0, end - start))))
    mine = lane == trains
    start, end, phase = start[mine], end[mine], phase[mine]
    level, lane = level[mine], lane[mine]
    inner = np.flatnonzero(level)
    around = find_parents(lane, level, start, end, inner)
    inner, around = inner[around >= 0], around[around >= 0]
    for place in range(len(phases)):
        own, nested = phase == place, inner[phase[around] == place]
        if own.any():
            until = _time_until(start[own], end[own], times)
            if len(nested):
                until -= _time_until(start[nested], end[nested], times)
            found[:, place] = np.diff(until, axis=0)
    return found


def _time_until(start: Ints, end: Ints, times: Ints) -> Ints:
    """Return how much of these intervals is before each of the times; overlaps count twice."""
    return _since(start, times) - _since(end, times)


def _since(begins: Ints, times: Ints) -> Ints:
    """Return the sum of the times since all of these points that are in the past."""
    if not len(begins):
        return np.zeros_like(times)
    begins = np.sort(begins)
    origin = begins[0]
    sums = np.concatenate([[0], np.cumsum(begins - origin)])
    past = np.searchsorted(begins, times, side="right")
    return np.asarray(past * (times - origin) - sums[past], dtype=np.int64)
