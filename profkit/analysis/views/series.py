"""Readings over time in bins of equal length, for a row of characters, without smoothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from profkit.frame.estimate import Floats, Ints

MOST_BINS = 240
"""A terminal has fewer columns for a curve than this."""


@dataclass(frozen=True)
class Series:
    """The lowest, mean and highest reading of each bin and of all; a bin without one is null."""

    low: tuple[float | None, ...]
    mean: tuple[float | None, ...]
    high: tuple[float | None, ...]
    least: float
    average: float
    most: float
    readings: int


def bin_readings(time_ns: Ints, values: Floats, begin_ns: int, end_ns: int) -> Series | None:
    """Return the readings from `begin_ns` to `end_ns` in bins; `None` if there are none.

    There are two bins for three readings, up to a limit: a bin without one then means a gap, and
    not a reading that came a little late. NaN does not count as a reading.
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
    known: list[float | None] = values.tolist()
    for place in np.flatnonzero(count == 0):
        known[place] = None
    return tuple(known)


def rates(time_ns: Ints, counter: Floats) -> tuple[Ints, Floats]:
    """Return the growth of a counter per second, at the end of each interval.

    Intervals in which the counter was reset are excluded.
    """
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
    """Spread the bins over so many columns, several in one or one over several."""
    bins = len(series.mean)
    borders = [column * bins // columns for column in range(columns + 1)]
    cells: list[Cell | None] = []
    for first, last in itertools.pairwise(borders):
        lows, means, highs = [], [], []
        for place in range(first, max(last, first + 1)):
            low, mean, high = series.low[place], series.mean[place], series.high[place]
            if low is not None and mean is not None and high is not None:
                lows.append(low)
                means.append(mean)
                highs.append(high)
        if means:
            cells.append(Cell(min(lows), sum(means) / len(means), max(highs)))
        else:
            cells.append(None)
    return tuple(cells)
