"""Finds the runs of a series that differ most from the rest, in many rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from profkit.analysis.estimate import Floats, Ints

FEWEST_PER_SIDE = 3
"""Fewer runs on one side of a change may be a disturbed machine."""

Scan: TypeAlias = Callable[[Floats], tuple[Floats, Ints]]
"""Finds the runs that differ most from the rest of a row: the first of them, and the one after."""


def scan_steps(rows: Floats) -> tuple[Floats, Ints]:
    """Return the largest squared t over all places of a step, and the runs after it."""
    count = rows.shape[1]
    left = np.arange(FEWEST_PER_SIDE, count - FEWEST_PER_SIDE + 1)
    stretches = np.stack([left, np.full_like(left, count)], axis=1)
    return _scan(rows, stretches)


def scan_stretches(rows: Floats) -> tuple[Floats, Ints]:
    """Return the largest squared t over all stretches inside each row, and the stretch."""
    count, fewest = rows.shape[1], FEWEST_PER_SIDE
    places = np.arange(fewest, count - fewest + 1)
    first, end = (places[each] for each in np.triu_indices(len(places), fewest))
    return _scan(rows, np.stack([first, end], axis=1))


def _scan(rows: Floats, stretches: Ints) -> tuple[Floats, Ints]:
    """Return each row's largest squared t of a stretch against the rest, and the stretch."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    totals = np.pad(np.cumsum(centred, axis=1), ((0, 0), (1, 0)))
    first, end = stretches.T
    size = end - first
    between = (totals[:, end] - totals[:, first]) ** 2 * count / (size * (count - size))
    best = between.argmax(axis=1)
    most = between[np.arange(len(rows)), best]
    rest = np.maximum((centred**2).sum(axis=1) - most, np.finfo(float).tiny)
    return most * (count - 2) / rest, np.asarray(stretches[best], dtype=np.int64)
