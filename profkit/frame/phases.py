"""Splits the steps' wall time into exclusive parts by phase, and what no phase covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import durations, places_in, step_places
from profkit.frame.device_clock import exposed_spans, find_parents, lanes_of, levels_of
from profkit.frame.estimate import Floats, Ints
from profkit.vocab import PHASES

UNKNOWN = "unknown"


@dataclass(frozen=True)
class StepTimes:
    """Wall time, time by phase and samples of each used step.

    Times are means over the ranks, samples are those of all ranks. `parts` has a row for each name
    in `names`; the last is `unknown`, the wall time minus all phases. It may be negative, and is
    never clamped.
    """

    wall_ns: Floats
    samples: Floats
    names: tuple[str, ...]
    parts: Floats

    def means(self) -> dict[str, float]:
        """Return the mean time per step of each part."""
        found = {}
        for name, part in zip(self.names, self.parts, strict=True):
            found[name] = float(part.mean())
        return found


def step_times(steps: pa.Table, spans: pa.Table, used: Ints) -> StepTimes:
    """Compare the phases of the `used` steps with the steps' own wall clock.

    A span nested in one of another phase counts for its own phase, and is taken out of the one
    around it. Only spans of the thread that runs the steps count: what other threads do overlaps.
    Phases with device times count as the device saw them.
    """
    ranks = max(1, len(pc.unique(steps["rank"])))
    place = step_places(steps, used)
    kept = place >= 0
    wall_ns = _sums(place[kept], durations(steps)[kept], len(used)) / ranks
    samples = _sums(place[kept], steps["sample_count"].to_numpy()[kept], len(used))
    phases = sum_phases(exposed_spans(spans), used)[0] / ranks
    seen = np.flatnonzero(phases.any(axis=1))
    names = tuple(PHASES[row] for row in seen)
    parts = np.concatenate([phases[seen], [wall_ns - phases.sum(axis=0)]])
    return StepTimes(wall_ns, samples, (*names, UNKNOWN), parts)


def _sums(places: Ints, values: npt.NDArray[np.generic], count: int) -> Floats:
    """Return the sum of the values at each of `count` places."""
    return np.bincount(places, weights=values, minlength=count).astype(np.float64)


def sum_phases(spans: pa.Table, used: Ints) -> tuple[Floats, Ints]:
    """Return the time by (phase, used step) over all ranks, and the outer phases per step.

    Outer phases are those that were timed inside no other.
    """
    if not spans.num_rows:
        return np.zeros((len(PHASES), len(used))), np.zeros(len(used), dtype=np.int64)
    rank = spans["rank"].to_numpy().astype(np.int64)
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    level, lane = levels_of(spans), lanes_of(spans)
    own_ns = _self_times(lane, level, start, end)
    place, phase = step_places(spans, used), places_in(spans["phase"], PHASES)
    kept = (place >= 0) & (phase >= 0) & _runs_steps(rank, lane, np.where(level, 0, end - start))
    sums = _sums(phase[kept] * len(used) + place[kept], own_ns[kept], len(PHASES) * len(used))
    outer = np.bincount(place[kept & (level == 0)], minlength=len(used))
    return sums.reshape(len(PHASES), len(used)), outer


def _runs_steps(rank: Ints, lane: Ints, outer_ns: Ints) -> npt.NDArray[np.bool_]:
    """Return which spans are on the lane of their rank with the most time in phases.

    A lane is a thread of a rank.
    """
    lanes, first, place = np.unique(lane, return_index=True, return_inverse=True)
    total = _sums(place, outer_ns, len(lanes))
    order = np.lexsort((-lanes, total, rank[first]))
    owner = rank[first][order]
    runs = np.zeros(len(lanes), dtype=bool)
    runs[order[np.append(owner[1:] != owner[:-1], True)]] = True
    return np.asarray(runs[place])


def _self_times(lane: Ints, level: Ints, start: Ints, end: Ints) -> Ints:
    """Return each span's duration without the spans directly inside it."""
    inner = np.flatnonzero(level)
    own_ns = end - start
    if not len(inner):
        return own_ns
    around = find_parents(lane, level, start, end, inner)
    nested = around >= 0
    nested_ns = _sums(around[nested], own_ns[inner[nested]], len(start))
    return np.asarray(own_ns - nested_ns.astype(np.int64))
