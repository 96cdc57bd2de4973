"""Where the steps' wall time went: exclusive parts by phase, and what no phase covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Floats, Ints
from profkit.vocab import PHASES

UNKNOWN = "unknown"


@dataclass(frozen=True)
class StepTimes:
    """Per used step, as the mean over the ranks: wall time, samples of all ranks, time by phase.

    `parts` has a row for each name in `names`; the last is `unknown`, the wall time minus all
    phases. It may be negative, and is never clamped.
    """

    wall_ns: Floats
    samples: Floats
    names: tuple[str, ...]
    parts: Floats


def step_times(steps: pa.Table, spans: pa.Table, used: Ints) -> StepTimes:
    """Close the phases of the `used` steps against the steps' own wall clock.

    A span nested in one of another phase counts for its own phase, and is taken out of the one
    around it. Only spans of the thread that runs the steps count: what other threads do overlaps.
    """
    ranks = max(1, len(pc.unique(steps["rank"])))
    where, kept = _positions(steps["step"], used)
    wall = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy())[kept]
    wall_ns = _sums(where[kept], wall, len(used)) / ranks
    samples = _sums(where[kept], steps["sample_count"].to_numpy()[kept], len(used))
    phases = phase_sums(spans, used) / ranks
    seen = np.flatnonzero(phases.any(axis=1))
    names = (*(PHASES[row] for row in seen), UNKNOWN)
    return StepTimes(
        wall_ns, samples, names, np.concatenate([phases[seen], [wall_ns - phases.sum(axis=0)]])
    )


def _sums(places: Ints, values: npt.NDArray[np.generic], count: int) -> Floats:
    """The sum of the values at each of `count` places."""
    return np.bincount(places, weights=values, minlength=count).astype(np.float64)


def _positions(column: pa.ChunkedArray, used: Ints) -> tuple[Ints, Ints]:
    """For each row, the place of its step in `used`; and which rows have one."""
    index = column.fill_null(-1).to_numpy()
    where = np.minimum(np.searchsorted(used, index), max(0, len(used) - 1))
    has_one = (
        (used[where] == index) & column.is_valid().to_numpy()
        if len(used)
        else np.zeros(len(index), dtype=bool)
    )
    return where, np.flatnonzero(has_one)


def phase_sums(spans: pa.Table, used: Ints) -> Floats:
    """Time by (phase, used step) over all ranks."""
    return sum_phases(spans, used)[0]


def sum_phases(spans: pa.Table, used: Ints) -> tuple[Floats, Ints]:
    """Time by (phase, used step) over all ranks, and by step how many phases were timed that lie in no other."""
    if not spans.num_rows:
        return np.zeros((len(PHASES), len(used))), np.zeros(len(used), dtype=np.int64)
    rank, thread = spans["rank"].to_numpy().astype(np.int64), _codes(spans["thread"])
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    level = np.maximum(spans["depth"].to_numpy(), 0).astype(np.int64)
    lane = rank * (thread.max() + 1) + thread
    own_ns = _self_times(lane, level, start, end)
    where, kept = _positions(spans["step"], used)
    phase = _phase_codes(spans["phase"])
    kept = kept[(_runs_steps(rank, lane, np.where(level, 0, end - start)) & (phase >= 0))[kept]]
    sums = _sums(phase[kept] * len(used) + where[kept], own_ns[kept], len(PHASES) * len(used))
    return sums.reshape(len(PHASES), len(used)), np.bincount(
        where[kept[level[kept] == 0]], minlength=len(used)
    )


def _runs_steps(rank: Ints, lane: Ints, outer_ns: Ints) -> npt.NDArray[np.bool_]:
    """Whether each span's lane, which is a thread of a rank, is the one of its rank with the most time in phases."""
    lanes, first, place = np.unique(lane, return_index=True, return_inverse=True)
    total = _sums(place, outer_ns, len(lanes))
    order = np.lexsort((-lanes, total, rank[first]))
    owner = rank[first][order]
    runs = np.zeros(len(lanes), dtype=bool)
    runs[order[np.append(owner[1:] != owner[:-1], True)]] = True
    return np.asarray(runs[place])


def _self_times(lane: Ints, level: Ints, start: Ints, end: Ints) -> Ints:
    """Each span's duration without the spans right inside it."""
    inner = np.flatnonzero(level)
    own_ns = end - start
    if not len(inner):
        return own_ns
    around = _parents(lane * (level.max() + 1) + level, start, end, inner)
    nested = around >= 0
    return np.asarray(
        own_ns - _sums(around[nested], own_ns[inner[nested]], len(start)).astype(np.int64)
    )


def _parents(shelf: Ints, start: Ints, end: Ints, inner: Ints) -> Ints:
    """For each `inner` span, the one a level up that it lies in; -1 where that was not recorded.

    A shelf is a thread's spans of one level, numbered so that the shelf below is the level above.
    On it, the span that began last before the inner one does is the only one that can hold it.
    """
    _, moment = np.unique(start, return_inverse=True)
    key = shelf * len(start) + moment
    order = np.lexsort((end, key))
    before = np.searchsorted(key[order], key[inner] - len(start), side="right") - 1
    around = order[np.maximum(before, 0)]
    holds = (before >= 0) & (shelf[around] == shelf[inner] - 1) & (end[around] >= end[inner])
    return np.where(holds, around, -1)


def _phase_codes(column: pa.ChunkedArray) -> Ints:
    """Each row's phase as its place in `PHASES`, -1 for others; each distinct name is looked at once."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    names = column.combine_chunks().dictionary.to_pylist()
    places = np.array(
        [PHASES.index(name) if name in PHASES else -1 for name in names], dtype=np.int64
    )
    return np.asarray(places[_codes(column)])


def _codes(column: pa.ChunkedArray) -> Ints:
    """Each row's name as its place in the column's dictionary."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    return np.asarray(column.combine_chunks().indices.to_numpy(), dtype=np.int64)
