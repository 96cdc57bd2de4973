"""Differences of runs that have too few steps for a bootstrap, by an exact test.

If two runs are alike, any order of their steps by length is as likely as any other (the test of
Mann, Whitney and Wilcoxon). So the differences between single steps give an interval for the shift
whose confidence follows from counting orders. Three steps on each side allow 90 %, four 95 %.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import FEWEST_STEPS, Estimate, Floats, Ints
from profkit.text import duration, plural

USUAL_RISK = 0.05
FEWEST = 3
"""With fewer steps on a side there is no interval: any order of them is likely enough."""

_MOST_STEPS = 24
"""More steps of the longer side are thinned out: counting orders takes long."""


def exact_difference(base: Floats, target: Floats, value: float) -> Estimate:
    """Return `value`, the difference of two sides, with an interval from their single steps.

    There is none if the steps are too few.
    """
    base, target = _thin(base), _thin(target)
    known = np.isfinite(base).all() and np.isfinite(target).all()
    if not known or min(len(base), len(target)) < FEWEST:
        return Estimate(value)
    skipped, risk = choose_order(len(base), len(target))
    if np.array_equal(np.sort(base), np.sort(target)):
        # Equal to the nanosecond: copies of one measurement, which differ by nothing.
        return Estimate(value, min(0.0, value), max(0.0, value), level=1 - risk)
    differences = np.sort((target[:, None] - base[None, :]).ravel())
    low, high = float(differences[skipped]), float(differences[-1 - skipped])
    # The sums that `value` comes from weigh a long step more than its rank does, so it can be
    # outside. Then the interval around it, which is as wide as that of the ranks, counts as well.
    moved = value - float(np.median(differences))
    if not low < value < high:
        low, high = min(low, low + moved), max(high, high + moved)
    return Estimate(value, min(low, value), max(high, value), level=1 - risk)


def each_step(ns: Ints | None, costs: RunCosts) -> Floats:
    """Return the time per sample per GPU in each step; NaN in steps without samples.

    The steps of one line of a log are one figure, so they count once.
    """
    if ns is None:
        ns = np.zeros(costs.steps, dtype=np.int64)
    unknown = np.full(costs.steps, np.nan)
    times = np.asarray(np.divide(ns, costs.samples, out=unknown, where=costs.samples > 0))
    if not costs.of_lines:
        return times
    rounding_ns = 2 * costs.ranks
    is_first = np.abs(np.diff(costs.wall_ns, prepend=-rounding_ns - 1)) > rounding_ns
    return times[is_first]


def is_rare(ns: Ints | None, costs: RunCosts) -> bool:
    """Return true if too few lines of a log hold a part, such as one checkpoint, to repeat it."""
    if ns is None or not costs.of_lines:
        return False
    return 0 < int((each_step(ns, costs) > 0).sum()) < FEWEST


def plain_difference(base: RunCosts, target: RunCosts) -> str:
    """Say that there are too few steps for a test, and how long they are."""
    sides = []
    for side, costs in (("base", base), ("target", target)):
        words = f"the {side} has {plural(costs.steps, 'used step')}"
        if costs.steps > 1:
            lengths = costs.wall_ns / costs.ranks
            words += f" of {duration(lengths.min())} to {duration(lengths.max())}"
        sides.append(words)
    return (
        f"{' and '.join(sides)}, so this is a plain before and after: a test takes {FEWEST} steps "
        f"on each side, and an interval of 95 % {FEWEST_STEPS}"
    )


def _thin(values: Floats) -> Floats:
    if len(values) <= _MOST_STEPS:
        return values
    chosen = np.linspace(0, len(values) - 1, _MOST_STEPS).round().astype(np.int64)
    return np.asarray(values[chosen])


@lru_cache(maxsize=1_024)
def choose_order(base: int, target: int) -> tuple[int, float]:
    """Return how many differences to skip at each end, and the chance to miss the true shift."""
    orders = comb(base + target, base)
    counts = _count_orders(base, target)
    skipped, tail = 0, counts[0]
    while 2 * (tail + counts[skipped + 1]) <= USUAL_RISK * orders:
        skipped += 1
        tail += counts[skipped]
    return skipped, 2 * tail / orders


def _count_orders(base: int, target: int) -> list[int]:
    """Return in how many orders each number of pairs has its target step first.

    The counts are the coefficients of the Gaussian binomial.
    """
    counts = [1] + [0] * (base * target)
    for grown in range(1, base + 1):
        # Multiply by (1 - q^(target + grown)) and divide by (1 - q^grown).
        for place in range(len(counts) - 1, target + grown - 1, -1):
            counts[place] -= counts[place - target - grown]
        for place in range(grown, len(counts)):
            counts[place] += counts[place - grown]
    return counts
