"""Tells a drift of the step time from successive shifts of its level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profkit.analysis.change_points import LEAST_CHANGE
from profkit.analysis.estimate import Floats

_BLOCKS = 40
"""A drift is told from steps by so many medians."""

FEWEST_PER_BLOCK = 3
_BETTER_FIT, _FEW_SHIFTS = 0.7, 2
"""The squared error of a bent line must be below this share of that of one or two shifts.

More shifts have more parameters than the line.
"""


_FEWEST_BLOCKS = 1
"""After the last shift, so many blocks are needed: their medians do not show fewer steps."""

_LEFT_OVER = 0.2
"""Without a shift, a drift must leave at most this share of the medians' squared deviations."""

_LEFT_AMONG = 0.5
"""The same with shifts: a job that goes to and fro between two levels has no drift."""

LEAST_DRIFT, _FEWEST_RISING = 0.05, 10
"""Such a drift changes the step by this share, over so many medians; a line bends by chance too."""


def find_drift_alone(logs: Floats) -> int | None:
    """Return where a drift begins in a series without shifts; `None` if it has none."""
    if len(logs) < _BLOCKS * FEWEST_PER_BLOCK:
        return None
    parts = np.array_split(logs, _BLOCKS)
    medians = np.array([np.median(part) for part in parts])
    fits = [_bent_line(medians, corner) for corner in range(_BLOCKS - _FEWEST_RISING + 1)]
    corner = int(np.argmin([error for error, _ in fits]))
    error, slope = fits[corner]
    if error > _LEFT_OVER * float(((medians - medians.mean()) ** 2).sum()):
        return None
    if abs(slope) * (_BLOCKS - corner) < LEAST_DRIFT:
        return None
    middle = (corner + _BLOCKS) // 2  # a step that no shift shows is no drift
    for half in (medians[corner:middle], medians[middle:]):
        if _bent_line(half, 0)[1] * slope <= 0:
            return None
    return sum(len(part) for part in parts[:corner])


def find_drift_among(
    logs: Floats, bounds: Sequence[int], place: int, rises: Sequence[float]
) -> tuple[int | None, int]:
    """Return where a drift begins that some shifts are, and the number of the shift after it.

    Shifts of one direction from the number `place` on may be a drift. If they are none, the largest
    of them may be a jump of its own, which ends the drift. `bounds` has the ends of the series too.
    """
    after = place + 1
    while after < len(rises) and (rises[after] > 0) == (rises[place] > 0):
        after += 1
    while after > place:
        drift = find_drift(logs, bounds, bounds[place], bounds[after + 1])
        if drift is not None:
            return drift, after
        after = place + int(np.argmax(np.abs(rises[place:after])))
    return None, after


def find_drift(logs: Floats, bounds: Sequence[int], begin: int, end: int) -> int | None:
    """Return where a drift begins, if a bent line fits better than the shifts; else `None`.

    The series are logarithms of step times, and `bounds` are the places of all shifts.
    """
    blocks = min(_BLOCKS, (end - begin) // FEWEST_PER_BLOCK)
    if blocks < _BLOCKS // 2:
        return None
    parts = np.array_split(logs[begin:end], blocks)
    medians = np.array([np.median(part) for part in parts])
    fits = [_bent_line(medians, corner) for corner in range(blocks - 3)]
    errors = [error for error, _ in fits]
    corner = int(np.argmin(errors))
    if errors[corner] > _LEFT_AMONG * float(((medians - medians.mean()) ** 2).sum()):
        return None
    level = np.empty(end - begin)
    inner = [bound for bound in bounds if begin < bound < end]
    if inner and end - inner[-1] < _FEWEST_BLOCKS * len(parts[-1]):
        return None
    for first, last in zip([begin, *inner], [*inner, end], strict=True):
        level[first - begin : last - begin] = np.median(logs[first:last])
    stepped = np.array([np.median(part) for part in np.array_split(level, blocks)])
    needed = _BETTER_FIT if len(inner) <= _FEW_SHIFTS else 1.0
    if errors[corner] >= needed * float(((medians - stepped) ** 2).sum()):
        return None
    if abs(fits[corner][1]) * (blocks - corner) < LEAST_CHANGE:
        return None
    return begin + sum(len(part) for part in parts[:corner])


def _bent_line(values: Floats, corner: int) -> tuple[float, float]:
    """Return the squared error and the slope of a line that is flat before a corner."""
    ramp = np.maximum(0.0, np.arange(len(values)) - (corner - 0.5))
    centred = ramp - ramp.mean()
    slope = float(centred @ values / (centred @ centred))
    rest = values - values.mean() - slope * centred
    return float(rest @ rest), slope
