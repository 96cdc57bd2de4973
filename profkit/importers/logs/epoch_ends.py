"""Finds logs with faster steps at the end of epochs, when workers have nothing to do.

By then all batches of the epoch have been made. If the steps become faster, apart from their wait
for data, the workers and the training are in each other's way.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from profkit.importers.logs.parsed import Mean, ParsedLog

_FEWEST_ENDS, _FEWEST_OTHERS = 3, 8
_STANDARD_ERRORS = 4.0
"""The two groups differ if their means are this many standard errors apart."""
_LEAST_SHARE = 0.02
"""A smaller difference is not worth reporting."""


def find_fast_ends(log: ParsedLog) -> dict[str, float] | None:
    """Return the step times with and without idle workers in ns, without waits; null if equal."""
    if log.times is Mean.STEP:
        return None
    records = []
    for each in log.steady:
        if each.step_s is not None and each.epoch is not None:
            records.append(each)
    ends: list[float] = []
    others: list[float] = []
    for (before, record), (_, after) in itertools.pairwise(itertools.pairwise(records)):
        if before.epoch == record.epoch:  # workers start in the first line of an epoch
            working_s = (record.step_s or 0.0) - (record.data_s or 0.0) - (record.other_s or 0.0)
            (ends if after.epoch != record.epoch else others).append(working_s)
    if len(ends) < _FEWEST_ENDS or len(others) < _FEWEST_OTHERS:
        return None
    gained_s = statistics.fmean(others) - statistics.fmean(ends)
    error_s = math.hypot(_error(ends), _error(others))
    if gained_s < max(_STANDARD_ERRORS * error_s, _LEAST_SHARE * statistics.fmean(others)):
        return None
    return {
        "lines": len(ends),
        "others": len(others),
        "step_ns": 1e9 * statistics.fmean(ends),
        "others_ns": 1e9 * statistics.fmean(others),
    }


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
