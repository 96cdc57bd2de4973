"""What the levels of successive parts of a series differ by, if by nothing but chance.

It is learned from the series itself: the same difference at earlier places.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from profkit.frame.estimate import Floats, Ints

BY_MEDIAN, BY_MEAN = (8, 12, 16, 24), (32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Lengths of the later part; the earlier one is longer by `EARLIER`.

Of few steps the median counts, which single slow steps do not move. Of many, the mean of clipped
values varies less.
"""

EARLIER = 4

_LATEST_BY_MEDIAN = 2_048
"""Medians of so many steps at most are learned from, because they take far longer than means."""

_MOST_WINDOWS = 8_192
"""The medians of so many windows are computed at once, which bounds the memory."""

_LEAST_BLOCKS = 8
"""A scale's own spread is used if the past holds so many independent parts of its length."""

_SLOW_DECAY = 0.4
"""Unknown scales are taken to vary less by this power; noise without memory has 0.5."""

_MOST_ABOVE = 2.0
"""What theory expects by the correlation counts up to this many times what was seen."""

_OF_MEDIAN = 1.2533
"""Medians vary more than means by this factor."""

_TAILS = ((0.5, 0.6745), (0.95, 1.96), (0.99, 2.5758))
"""Shares of differences that are smaller than so many standard deviations, without heavy tails."""


class LevelNoise:
    """The spread of differences by scale."""

    def __init__(self) -> None:
        self.by_scale: dict[int, float] = {}

    def learn(
        self,
        past: Floats,
        level: float,
        scatter: float,
        reach: float,
        medians: Medians,
        *,
        is_later: bool,
    ) -> None:
        """Learn from steps of one level, the first one or a later one.

        The medians are those of a series that begins with these steps.
        """
        clipped = np.clip(past - level, -reach, reach)
        correlation = _correlation(clipped)
        middle = 1.4826 * float(np.median(np.abs(past - np.median(past)))) or scatter
        together = math.sqrt((1 + correlation) / (1 - correlation))
        unsure = 1 + together / math.sqrt(len(past))  # as many steps as are independent show it
        known: tuple[int, float] | None = None
        for scale in (*BY_MEDIAN, *BY_MEAN):
            least = together * math.sqrt((1 + 1 / EARLIER) / scale)
            least *= _OF_MEDIAN * middle if scale in BY_MEDIAN else float(clipped.std())
            own = 0.0
            if len(past) >= (_LEAST_BLOCKS + 1 + EARLIER) * scale:
                ends = np.arange((1 + EARLIER) * scale, len(past) + 1)
                if scale in BY_MEDIAN:
                    levels = medians.at(ends[-_LATEST_BY_MEDIAN:], scale)
                else:
                    levels = means_before(clipped, ends, scale)
                own = _spread(np.subtract(*levels))
                known = scale, own if is_later else max(own, least)
            elif known is not None:
                own = known[1] * (scale / known[0]) ** -_SLOW_DECAY
            elif is_later:
                continue  # few steps of this level say less than those of the level before
            if is_later:  # a drift looks like a correlation, for which theory expects too much
                least = min(least, _MOST_ABOVE * own)
            self.by_scale[scale] = max(own, least) * unsure


class Medians:
    """The medians of successive steps in a series, each computed once."""

    def __init__(self, series: Floats) -> None:
        self.series = series
        self._known: dict[int, Floats] = {}
        self._begin = 0

    def after(self, begin: int) -> Medians:
        """Return the same medians, with places that are counted from `begin` on."""
        found = Medians(self.series)
        found._known, found._begin = self._known, begin
        return found

    def at(self, ends: Ints, scale: int) -> tuple[Floats, Floats]:
        """Return the median of so many steps before each end, and that of those before them."""
        cuts = self._begin + ends - scale
        return self._of(scale)[cuts], self._of(EARLIER * scale)[cuts - EARLIER * scale]

    def _of(self, length: int) -> Floats:
        """Return the median of so many steps from each place on."""
        if length not in self._known:
            windows = sliding_window_view(self.series, length)
            parts = np.array_split(windows, 1 + len(windows) // _MOST_WINDOWS)
            self._known[length] = np.concatenate([np.median(part, axis=1) for part in parts])
        return self._known[length]


def means_before(series: Floats, ends: Ints, scale: int) -> tuple[Floats, Floats]:
    """Return the mean of the steps before each end, and of those before them."""
    sums = np.concatenate([[0.0], np.cumsum(series)])
    cuts = ends - scale
    starts = np.maximum(0, cuts - EARLIER * scale)
    later = (sums[ends] - sums[cuts]) / scale
    return np.asarray(later), np.asarray((sums[cuts] - sums[starts]) / (cuts - starts))


def _spread(differences: Floats) -> float:
    """Return the standard deviation of differences, by their middle and their tails."""
    shares, deviations = np.array(_TAILS).T
    return float((np.quantile(np.abs(differences), shares) / deviations).max())


def scatter_of(series: Floats) -> float:
    """Return the scatter of neighbouring steps, which no change of the level adds to."""
    apart = np.abs(np.diff(series))
    level = float(np.median(np.abs(series - np.median(series))))
    return max(1.4826 * float(np.median(apart)) / math.sqrt(2), 0.7 * level, 1e-4)


def _correlation(series: Floats) -> float:
    """Return the correlation of neighbouring steps, with what a short series hides."""
    centred = series - series.mean()
    variance = float(centred @ centred)
    if variance <= 0:
        return 0.0
    seen = float(centred[1:] @ centred[:-1]) / variance
    return min(0.9, max(0.0, seen + (1 + 4 * max(0.0, seen)) / len(series)))
