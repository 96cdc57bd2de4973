"""Finds steps that are slow at regular intervals, such as those that save or log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from profkit.analysis.estimate import Floats, Ints

LEAST_SLOWER = 0.2
"""A slow step takes at least this share longer than the others."""

SCATTER_FACTOR = 6.0
"""A slow step is so many times the scatter of the others above them."""

FEWEST_SLOW = 8
"""Fewer slow steps allow no interval."""

SHORTEST_PERIOD = 3
MOST_OTHER_GAPS = 0.2
"""This share of the gaps between slow steps may differ from the period."""

BY_CHANCE = 1e-4
"""Slow steps without order make as many regular gaps with at most this probability."""

_SLOWEST_FROM = 0.75
"""If slow steps have no order, those may have one that are half as slow as this quantile of them.

Steps that the machine makes a fifth longer come among those that evaluate or save.
"""

LEAST_COST = 0.005
"""Slow steps that cost less than this share of the run's time are not worth a line."""


@dataclass(frozen=True)
class Periodic:
    """Slow steps at regular intervals, by their places in the series."""

    every: int
    places: Ints = field(repr=False)


def find_periodic(numbers: Ints, step_ns: Floats, usual_ns: Floats) -> Periodic | None:
    """Return the slow steps of a series with a known level, if they come regularly.

    Steps may be missing, so that gaps may be several periods long.
    """
    logs = np.log(np.maximum(step_ns, 1.0) / np.maximum(usual_ns, 1.0))
    scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
    slow = np.flatnonzero(logs > max(np.log1p(LEAST_SLOWER), SCATTER_FACTOR * scatter))
    if len(slow) < FEWEST_SLOW:
        return None
    excess = logs[slow]
    slowest = slow[excess > float(np.quantile(excess, _SLOWEST_FROM)) / 2]
    for places in (slow, slowest):
        found = _find_order(numbers, places)
        if found is None:
            continue
        cost_ns = float((step_ns[found.places] - usual_ns[found.places]).sum())
        if cost_ns >= LEAST_COST * step_ns[found.places[0] :].sum():
            return found
    return None


def _find_order(numbers: Ints, slow: Ints) -> Periodic | None:
    """Return those of the slow steps that come at a regular interval, if most of them do."""
    # What slows a step may slow the next ones, too: the first of them counts.
    slow = slow[np.diff(numbers[slow], prepend=-2) > 1]
    if len(slow) < FEWEST_SLOW:
        return None
    gaps = np.diff(numbers[slow])
    every = int(np.median(gaps))
    if every < SHORTEST_PERIOD:
        return None
    apart = np.abs(gaps - every * np.maximum(1, np.rint(gaps / every)))
    for most in (0, max(1, every // 20)):  # a clock may decide which step is slow
        regular = apart <= most
        if _is_order(float(regular.mean()), len(gaps), (1 + 2 * most) / every):
            kept = np.concatenate([[regular[0]], regular[:-1] | regular[1:], [regular[-1]]])
            return Periodic(every, slow[kept])
    return None


def _is_order(share: float, gaps: int, by_chance: float) -> bool:
    """Return true if far more of the gaps are regular than the share that is so by chance."""
    if share < 1 - MOST_OTHER_GAPS or share <= by_chance:
        return False
    exponent = share * math.log(share / by_chance)  # Chernoff's bound of the binomial tail
    if share < 1:
        exponent += (1 - share) * math.log((1 - share) / (1 - by_chance))
    return gaps * exponent >= -math.log(BY_CHANCE)
