"""Readings over time in bins of equal length: what a row of characters can show of them, and nothing smoothed away."""

from __future__ import annotations

import itertools
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
    readings: int


def bin_readings(time_ns: Ints, values: Floats, begin_ns: int, end_ns: int) -> Series | None:
    """The readings from `begin_ns` to `end_ns` in bins; `None` where there are none.

    There are two bins for three readings, up to a limit: a bin without one then means a gap, and not a
    reading that came a little late. What is no number does not count as a reading.
    """
    kept = np.isfinite(values) & (time_ns >= begin_ns) & (time_ns <= end_ns)
    time_ns, values = time_ns[kept], values[kept]
    if not len(values):
        return None
    bins = min(MOST_BINS, (2 * len(values) + 2) // 3)
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
        readings=len(values),
    )


def _known(values: Floats, count: Ints) -> tuple[float | None, ...]:
    return tuple(
        float(value) if readings else None for value, readings in zip(values, count, strict=True)
    )


def rates(time_ns: Ints, counter: Floats) -> tuple[Ints, Floats]:
    """How fast a counter grew, per second, told at the end of each interval; a counter that began anew is left out there."""
    order = np.argsort(time_ns, kind="stable")
    time_ns, counter = time_ns[order], counter[order]
    took, grew = np.diff(time_ns), np.diff(counter)
    whole = (took > 0) & (grew >= 0)
    return time_ns[1:][whole], grew[whole] * 1e9 / took[whole]


@dataclass(frozen=True)
class Cell:
    """The lowest, mean and highest of the bins that fall into one column."""

    low: float
    mean: float
    high: float


def spread_bins(series: Series, columns: int) -> tuple[Cell | None, ...]:
    """The bins over so many columns, in their order: several in one, or one over several; `None` where nothing was read."""
    bins = len(series.mean)
    borders = [column * bins // columns for column in range(columns + 1)]
    return tuple(
        _cell(series, first, max(last, first + 1)) for first, last in itertools.pairwise(borders)
    )


def _cell(series: Series, first: int, last: int) -> Cell | None:
    known = [place for place in range(first, last) if series.mean[place] is not None]
    if not known:
        return None
    low, mean, high = (
        [parts[place] or 0.0 for place in known] for parts in (series.low, series.mean, series.high)
    )
    return Cell(min(low), sum(mean) / len(mean), max(high))
