"""Readings over time in bins of equal length: what a row of characters can show of them, and nothing smoothed away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profkit.analysis.estimate import Floats, Ints

MOST_BINS = 240
"""More than a terminal has columns for a curve."""


@dataclass(frozen=True)
class Series:
    """The lowest, mean and highest reading of each bin, null where it has none; and those of all readings."""

    low: tuple[float | None, ...]
    mean: tuple[float | None, ...]
    high: tuple[float | None, ...]
    least: float
    average: float
    most: float
    last: float
    readings: int


def bin_readings(time_ns: Ints, values: Floats, begin_ns: int, end_ns: int) -> Series | None:
    """The readings from `begin_ns` to `end_ns` in as many bins as there are readings, up to a limit; `None` where there are none.

    What is no number does not count as a reading.
    """
    kept = np.isfinite(values) & (time_ns >= begin_ns) & (time_ns <= end_ns)
    time_ns, values = time_ns[kept], values[kept]
    if not len(values):
        return None
    bins = min(MOST_BINS, len(values))
    place = np.minimum((time_ns - begin_ns) * bins // max(1, end_ns - begin_ns), bins - 1)
    count = np.bincount(place, minlength=bins)
    low, high = np.full(bins, np.inf), np.full(bins, -np.inf)
    np.minimum.at(low, place, values)
    np.maximum.at(high, place, values)
    sums = np.bincount(place, weights=values, minlength=bins)
    return Series(
        low=_known(low, count),
        mean=_known(sums / np.maximum(count, 1), count),
        high=_known(high, count),
        least=float(values.min()),
        average=float(values.mean()),
        most=float(values.max()),
        last=float(values[np.argmax(time_ns)]),
        readings=len(values),
    )


def _known(values: Floats, count: Ints) -> tuple[float | None, ...]:
    return tuple(float(value) if readings else None for value, readings in zip(values, count, strict=True))


def rates(time_ns: Ints, counter: Floats) -> tuple[Ints, Floats]:
    """How fast a counter grew, per second, told at the end of each interval; a counter that began anew is left out there."""
    order = np.argsort(time_ns, kind="stable")
    time_ns, counter = time_ns[order], counter[order]
    took, grew = np.diff(time_ns), np.diff(counter)
    whole = (took > 0) & (grew >= 0)
    return time_ns[1:][whole], grew[whole] * 1e9 / took[whole]
