"""Data for the drawings of a report: each step's wall time, and each rank's time by phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.frame.columns import durations
from profkit.frame.estimate import Ints
from profkit.frame.run_frame import RunFrame
from profkit.frame.selection import Selection

USED = "used"


@dataclass(frozen=True)
class StepPoint:
    """Neighbouring steps of one kind that share a place in the drawing.

    `step` is the first one's number; their wall times are means over the ranks.
    """

    step: int
    count: int
    kind: str
    low_ns: float
    mean_ns: float
    high_ns: float


@dataclass(frozen=True)
class RankPhases:
    """Time per step of each rank in each phase, in ns.

    `spread` is the difference from the median rank, as a share of its step.
    """

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    step_ns: tuple[tuple[float, ...], ...]
    spread: tuple[tuple[float, ...], ...]
    ranks_in_all: int


def step_points(
    steps: pa.Table, selection: Selection, *, places: int = 400
) -> tuple[StepPoint, ...]:
    """Return the run's steps in order as at most about `places` points.

    Steps of different kinds never share a point.
    """
    numbers, where = np.unique(steps["step"].to_numpy(), return_inverse=True)
    if not len(numbers):
        return ()
    mean_ns = np.bincount(where, weights=durations(steps)) / np.bincount(where)
    names = [USED, *selection.which]
    kinds = np.zeros(len(numbers), dtype=np.int64)
    for kind, excluded in enumerate(selection.which.values(), start=1):
        kinds[np.isin(numbers, excluded)] = kind
    place = np.arange(len(numbers)) * min(places, len(numbers)) // len(numbers)
    borders = np.flatnonzero((np.diff(place) != 0) | (np.diff(kinds) != 0)) + 1
    points = []
    for rows in np.split(np.arange(len(numbers)), borders):
        wall_ns = mean_ns[rows]
        first, kind_name = int(numbers[rows[0]]), names[kinds[rows[0]]]
        low, mean, high = float(wall_ns.min()), float(wall_ns.mean()), float(wall_ns.max())
        points.append(StepPoint(first, len(rows), kind_name, low, mean, high))
    return tuple(points)


def rank_phases(frame: RunFrame, used: Ints, *, most_ranks: int = 64) -> RankPhases | None:
    """Return the phases of each rank, or of those that differ most if there are too many.

    It is `None` if there is nothing to compare.
    """
    ranks = frame.basis.ranks
    if len(ranks) < 2 or not len(used):
        return None
    found: list[dict[str, float]] = []
    phases: dict[str, None] = {}
    for rank in ranks:
        found.append(frame.means_of(rank, used))
        phases.update(dict.fromkeys(found[-1]))
    cells = np.zeros((len(ranks), len(phases)))
    for row, times_ns in enumerate(found):
        cells[row] = [times_ns.get(name, 0.0) for name in phases]
    spread = (cells - np.median(cells, axis=0)) / np.median(cells.sum(axis=1))
    shown = np.sort(np.argsort(-np.abs(spread).max(axis=1), kind="stable")[:most_ranks])
    return RankPhases(
        tuple(np.array(ranks)[shown].tolist()),
        tuple(phases),
        tuple(map(tuple, cells[shown].tolist())),
        tuple(map(tuple, spread[shown].tolist())),
        len(ranks),
    )
