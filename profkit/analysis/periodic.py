"""Finds steps that are slow at regular intervals, such as those that save or log."""

from __future__ import annotations

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
    gaps = np.diff(numbers[slow])
    every = int(np.median(gaps))
    if every < SHORTEST_PERIOD:
        return None
    apart = np.abs(gaps - every * np.maximum(1, np.rint(gaps / every)))
    regular = apart <= max(1, every // 20)
    if (~regular).mean() > MOST_OTHER_GAPS:
        return None
    if (step_ns[slow] - usual_ns[slow]).sum() < LEAST_COST * step_ns[slow[0] :].sum():
        return None
    kept = np.concatenate([[regular[0]], regular[:-1] | regular[1:], [regular[-1]]])
    return Periodic(every, slow[kept])
