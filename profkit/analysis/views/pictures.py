"""What a report draws besides its figures: each step's wall time, and each rank's time by phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Ints
from profkit.analysis.phases import step_times
from profkit.analysis.selection import Selection

USED = "used"


@dataclass(frozen=True)
class StepPoint:
    """Neighbouring steps of one kind, as many as share a place: the first one's number, and their wall times as means over the ranks."""

    step: int
    count: int
    kind: str
    low_ns: float
    mean_ns: float
    high_ns: float


@dataclass(frozen=True)
class RankPhases:
    """Time per step of each rank in each phase, in ns; `spread` of a cell is against the median rank, as a share of its step."""

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    step_ns: tuple[tuple[float, ...], ...]
    spread: tuple[tuple[float, ...], ...]
    ranks_in_all: int


def step_points(
    steps: pa.Table, selection: Selection, *, places: int = 400
) -> tuple[StepPoint, ...]:
    """The run's steps in their order, at most about `places` points; a kind of step is never averaged with another."""
    numbers, where = np.unique(steps["step"].to_numpy(), return_inverse=True)
    wall = steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()
    mean_ns = np.bincount(where, weights=wall) / np.bincount(where)
    kinds, names = _kinds(numbers, selection.which)
    place = np.arange(len(numbers)) * min(places, len(numbers)) // max(1, len(numbers))
    borders = np.flatnonzero((np.diff(place) != 0) | (np.diff(kinds) != 0)) + 1
    groups = np.split(np.arange(len(numbers)), borders)
    return tuple(
        StepPoint(
            int(numbers[each[0]]),
            len(each),
            names[kinds[each[0]]],
            float(mean_ns[each].min()),
            float(mean_ns[each].mean()),
            float(mean_ns[each].max()),
        )
        for each in groups
        if len(each)
    )


def _kinds(numbers: Ints, which: Mapping[str, Ints]) -> tuple[Ints, list[str]]:
    kinds = np.zeros(len(numbers), dtype=np.int64)
    for place, left_out in enumerate(which.values(), start=1):
        kinds[np.isin(numbers, left_out)] = place
    return kinds, [USED, *which]


def rank_phases(
    steps: pa.Table, spans: pa.Table, selection: Selection, *, most_ranks: int = 64
) -> RankPhases | None:
    """The phases of each rank; where there are too many ranks, those that differ most. `None` where nothing can be compared."""
    ranks = sorted(pc.unique(steps["rank"]).to_pylist())
    if len(ranks) < 2 or not len(selection.steps):
        return None
    found = [_of_rank(steps, spans, rank, selection) for rank in ranks]
    phases = tuple(dict.fromkeys(name for each in found for name in each))
    cells = np.array([[each.get(name, 0.0) for name in phases] for each in found])
    spread = (cells - np.median(cells, axis=0)) / np.median(cells.sum(axis=1))
    shown = np.sort(np.argsort(-np.abs(spread).max(axis=1), kind="stable")[:most_ranks])
    return RankPhases(
        tuple(ranks[place] for place in shown),
        phases,
        tuple(map(tuple, cells[shown].tolist())),
        tuple(map(tuple, spread[shown].tolist())),
        len(ranks),
    )


def _of_rank(steps: pa.Table, spans: pa.Table, rank: int, selection: Selection) -> dict[str, float]:
    times = step_times(
        steps.filter(pc.equal(steps["rank"], rank)),
        spans.filter(pc.equal(spans["rank"], rank)),
        selection.steps,
    )
    return dict(zip(times.names, times.parts.mean(axis=1).tolist(), strict=True))
