"""Finds where a job has warmed up, and early changes.

Both are what later steps show of the first ones, which are often unlike all others.
"""

from __future__ import annotations

import math

import numpy as np

from profkit.analysis.change_noise import BY_MEDIAN, scatter_of
from profkit.analysis.change_points import (
    FEWEST_BEFORE,
    LEAST_CHANGE,
    SHORT_PART,
    Shift,
    find_shifts,
    latest_shift,
)
from profkit.analysis.estimate import Floats

_SETTLES_IN = 5
"""The beginning of a level is searched in so many times the fewest steps before a change."""

_FAR_SPREADS, _LEAST_SPREAD = 3.0, 0.005
_FEWEST_FAR, _MORE_FAR = 10, 3.0
"""First steps are uneven if so many are so many spreads away from the middle of later ones.

Of the later ones, far fewer must be: in a job with two kinds of steps, many are at any time.
"""

_EVEN_FROM, _EVEN_BEFORE, _FEWEST_EVEN = (50, 70, 90), 10, 24
"""Later steps begin there, after so many even ones; fewer do not show their spread."""

_MORE_UNEVEN = 2.0
"""More than `FEWEST_BEFORE` first steps must scatter so many times as much: else they differ from
later ones by a change.
"""

_EARLY, _LATER = 160, 352
"""Few steps show little of what differs by chance, so later ones are asked about changes in these.
"""

EVEN_KNOWN = _EVEN_FROM[-1] + FEWEST_BEFORE
"""`find_even` looks at so many steps."""


def find_settled(step_ns: Floats) -> int:
    """Return where the level of a series begins: `find_shifts` sees no change so early.

    The steps before it would count as noise, which hides later changes.
    """
    first = step_ns[: _SETTLES_IN * FEWEST_BEFORE]
    later = first[FEWEST_BEFORE:]
    if not len(later):
        return 0
    rise = math.log(max(1.0, np.median(later)) / max(1.0, np.median(first[: BY_MEDIAN[0]])))
    if abs(rise) < LEAST_CHANGE:  # a search takes some milliseconds
        return 0
    for shift in find_shifts(first[::-1]):
        if len(first) - shift.at < FEWEST_BEFORE:
            return len(first) - shift.at
    return 0


def find_early(step_ns: Floats) -> Shift | None:
    """Return a change of the level in the first steps that a search from the end shows.

    `find_shifts` may miss it: it knows the noise by the few steps before the change only.
    """
    known = step_ns[: _EARLY + _LATER]
    early = min(_EARLY, len(known) // 2)
    shift = latest_shift(known[::-1], early) if early > FEWEST_BEFORE else None
    if shift is None:
        return None
    at = len(known) - shift.at
    logs = np.log(np.maximum(known, 1.0))
    if not FEWEST_BEFORE <= at < early or _is_uneven(logs[:at], logs[at:]):
        return None
    return Shift(at, len(known) - 1, -shift.rise)


def find_even(step_ns: Floats) -> int:
    """Return where first steps end that are far more uneven than those after them.

    They would count as noise too. It takes a hundredth of the time of `find_settled`.
    """
    logs = np.log(np.maximum(step_ns[:EVEN_KNOWN], 1.0))
    for before in _EVEN_FROM:
        even = logs[before : before + FEWEST_BEFORE]
        if len(even) < _FEWEST_EVEN:
            break
        middle = float(np.median(even))
        spread = max(_LEAST_SPREAD, 1.4826 * float(np.median(np.abs(even - middle))))
        is_far = np.abs(logs[: before + len(even)] - middle) > _FAR_SPREADS * spread
        first = is_far[:before]
        if first.sum() < _FEWEST_FAR or first.mean() < _MORE_FAR * is_far[before:].mean():
            continue
        crowded = np.convolve(first, np.ones(SHORT_PART), "valid") >= SHORT_PART / 2
        last = int(np.flatnonzero(crowded)[-1]) + SHORT_PART if crowded.any() else 0
        at = 1 + int(np.flatnonzero(first[:last])[-1]) if last else 0
        if at <= FEWEST_BEFORE or (at <= before - _EVEN_BEFORE and _is_uneven(logs[:at], even)):
            return at
    return 0


def _is_uneven(first: Floats, even: Floats) -> bool:
    """Return true if first steps differ from later ones by their scatter, not by a change."""
    own = float(np.median(first))
    spread = 1.4826 * float(np.median(np.abs(first - own)))
    is_changed = abs(own - float(np.median(even))) > _MORE_UNEVEN * spread
    return not is_changed and scatter_of(first) >= _MORE_UNEVEN * scatter_of(even)
