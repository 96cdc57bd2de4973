"""How far two healthy runs of one job differ, and how probable it is that a job changed.

On clusters of GPUs this is known from public repeats (docs/calibration.md). The more the steps of
the runs themselves scatter, the more the runs do.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from profkit.explain.policy import POLICY
from profkit.frame.estimate import Z_95

_NORMAL = NormalDist()


def spread_of_twins(error: float) -> float:
    """Return the share by which healthy runs on devices differ in 97.5 % of pairs at most.

    `error` is the standard error of the change, as a share, by the scatter of the steps alone.
    """
    return POLICY.twins_errors * math.hypot(POLICY.twins_floor, min(error, POLICY.twins_most_error))


def probability(change: float, *halves: float) -> float:
    """Return how probable a change in this direction is.

    `halves` are half the 95 % intervals of what else can be behind it, such as chance and machine.
    """
    half = math.hypot(*halves)
    if not half > 0:
        return 1.0 if change else 0.5
    return _NORMAL.cdf(Z_95 * abs(change) / half)
