"""Student's t for the few degrees of freedom that repeats of a run leave."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from profkit.frame.estimate import USUAL_LEVEL

_FEWEST_EXPANDED = 3
"""From so many degrees of freedom on, the expansion of Student's t is accurate."""

_EXPANSION = ((4, 1, 1), (96, 5, 16, 3), (384, 3, 19, 17, -15), (92160, 79, 776, 1482, -1920, -945))
"""The divisor of each power of 1 / freedom, and the coefficients of falling odd powers of z."""


def student_of_few(freedom: float, level: float = USUAL_LEVEL) -> float:
    """Return half the interval of this level of Student's t, from one degree of freedom on.

    The degrees of freedom need not be whole.
    """
    if freedom >= _FEWEST_EXPANDED:
        return _expanded(freedom, level)
    exact = {1: math.tan(math.pi * level / 2), 2: level * math.sqrt(2 / (1 - level**2))}
    exact[_FEWEST_EXPANDED] = _expanded(_FEWEST_EXPANDED, level)
    places = sorted(exact)
    inverse = 1 / max(1.0, freedom)
    # Between whole degrees, the logarithm of the quantile is nearly linear in 1 / freedom.
    logs = [math.log(exact[place]) for place in places]
    return float(math.exp(np.interp(-inverse, [-1 / place for place in places], logs)))


def _expanded(freedom: float, level: float) -> float:
    """Return the quantile by the expansion of Cornish and Fisher."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    found = z
    for power, (divisor, *coefficients) in enumerate(_EXPANSION, 1):
        odd = range(2 * power + 1, -1, -2)
        terms = sum(factor * z**each for factor, each in zip(coefficients, odd, strict=False))
        found += terms / (divisor * freedom**power)
    return found
