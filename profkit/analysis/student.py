"""Student's t for the few degrees of freedom that repeats of a run leave."""

from __future__ import annotations

import math

import numpy as np

from profkit.analysis.estimate import student_95

_FEWEST_EXPANDED = 3
"""From so many degrees of freedom on, the expansion of Student's t is accurate."""

_STUDENT_OF_FEW = {1: 12.706, 2: 4.303, _FEWEST_EXPANDED: 3.182}
"""The 97.5 % quantiles of Student's t for the fewest degrees of freedom."""


def student_of_few(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t for any degrees of freedom, from one on."""
    if freedom >= _FEWEST_EXPANDED:
        return student_95(freedom)
    places = sorted(_STUDENT_OF_FEW)
    inverse = 1 / max(1.0, freedom)
    # Between whole degrees, the logarithm of the quantile is nearly linear in 1 / freedom.
    logs = [math.log(_STUDENT_OF_FEW[place]) for place in places]
    return float(math.exp(np.interp(-inverse, [-1 / place for place in places], logs)))
