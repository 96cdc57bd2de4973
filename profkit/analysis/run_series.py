"""Finds the runs at which the speed of a job changed, in a series of runs.

Runs of the same job differ by a per cent or more, so a pair of runs says little. A series shows its
own noise. A change is reported if a permutation of the runs hardly ever shows one as large. A
change that was undone later is two changes, of which neither alone need be large: a stretch of runs
is compared with the rest. Of all series of independent runs without a change, at most
`FALSE_ALARMS` have one reported, whatever the distribution of the noise. If some runs are far from
all others, it is at most twice as many, because such series are searched without them, too.

Successive runs often meet the same state of the machine. The statistic is therefore discounted by
how much runs resemble their neighbours, which `benchmarks/history.py` measures to be enough for
about 3 % of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from profkit.frame.device_clock import Bools
from profkit.frame.estimate import NEGLIGIBLE, Estimate, Floats, Ints
from profkit.frame.student import student_of_few
from profkit.text import plural

FALSE_ALARMS = 0.005
"""The share of series without a change in which one is reported.

The search for steps and the one for stretches have half of it each.
"""

FEWEST_COMPARED = 5
"""Runs before the newest one, and that one, whose differences show the noise between runs."""

FEWEST_RUNS = 8
"""With fewer runs, too few permutations differ to tell a change from noise."""

MOST_RUNS = 200
"""Of a longer series, the last runs are examined."""

PARTS, PART = 10, 200
"""Permutations are made in so many parts of so many."""

OUTLIER = 4.0
"""Runs further from the median of their side, in robust standard deviations, are moved here.

None is moved if at least half of the runs are equal, as quantized times are: these have no spread.
"""

MOST_DISTURBED = 0.05
"""This share of earlier runs may be disturbed, or one of `FEWEST_RUNS`.

If more are far away, runs are of two kinds.
"""

WINDOW = 11
"""Runs of the median that the likeness of neighbours is measured against."""

NEIGHBOURS, SINGLE, MOST_SINGLE, MANY = 5, 5.0, 0.17, 25
"""Runs so many robust standard deviations from the median of their neighbours are moved there.

None is if more than this share are far. In shorter series, permutations would show larger changes.
"""

FAR, MOST_FAR = 4.0, 0.2
"""At most this share of the runs is far: so many robust standard deviations from the median."""

WITHIN_ONE_SD = 0.68
"""The share of values that normal noise has within one standard deviation."""

MAD_TO_SD, _HIGHEST_CORRELATION = 1.4826, 0.9


@dataclass(frozen=True)
class Change:
    """A change between two runs of a series. `at` is the first run after it, counted from 0."""

    at: int
    share: Estimate
    """How much more time a sample takes after it, as a share of the time before."""


@dataclass(frozen=True)
class Course:
    """The changes of a series, and the runs since the last one."""

    changes: tuple[Change, ...]
    since: int
    """The first run of the present level."""
    why_not: str = ""
    """Why changes cannot be found; empty if they can."""


def find_course(values: Sequence[float]) -> Course:
    """Return the changes of a series of positive values, oldest first."""
    series = np.log(np.asarray(values, dtype=np.float64))
    if len(series) < FEWEST_RUNS:
        missing = plural(FEWEST_RUNS - len(series), "more run")
        why_not = f"needs {missing}: a series shows its noise from {FEWEST_RUNS} runs on"
        return Course((), 0, why_not)
    first = max(0, len(series) - MOST_RUNS)
    places = sorted(first + place for place in _split(series[first:], 0))
    edges = [first, *places, len(series)]
    changes = []
    for number, place in enumerate(places, 1):
        before, after = series[edges[number - 1] : place], series[place : edges[number + 1]]
        share = difference_of_levels(before, after)
        if abs(share.value) >= NEGLIGIBLE:
            changes.append(Change(place, share))
    return Course(tuple(changes), changes[-1].at if changes else first)


def compare_newest(values: Sequence[float]) -> Estimate | None:
    """Return how much the last value is above those before it, with a prediction interval.

    The values before it are at one level. `None` if there are too few to know their noise, or if
    all are equal. The interval reaches to the earlier runs, except for those that were disturbed.
    """
    series = np.log(np.asarray(values, dtype=np.float64))
    if len(series) < FEWEST_COMPARED:
        return None
    before, newest, count = series[:-1], float(series[-1]), len(series) - 1
    if before.min() == before.max():
        return None
    disturbed = max(int(count >= FEWEST_RUNS), int(MOST_DISTURBED * count))
    clean = _without_outliers(before[None, :], np.zeros((1, count), dtype=np.bool_))[0]
    if np.count_nonzero(~np.isclose(clean, before, rtol=0, atol=1e-9)) > disturbed:
        clean = before
    level, ordered = float(clean.mean()), np.sort(before)
    spread = float(clean.std(ddof=1)) * math.sqrt(1 + _likeness(clean) / count)
    half = student_of_few(count - 1) * spread
    most = max(level + half, float(ordered[-1 - disturbed]))
    least = min(level - half, float(ordered[disturbed]))
    return Estimate(*map(math.expm1, (newest - level, newest - most, newest - least)))


def _split(series: Floats, start: int) -> Iterator[int]:
    """Yield the places at which the series, which begins at `start`, changes."""
    if len(series) < FEWEST_RUNS:
        return
    found = _search(series) or _search_usual(series)
    if found is None:
        return
    edges = [0, *(place for place in found if place < len(series)), len(series)]
    for first, end in pairwise(edges):
        yield from _split(series[first:end], start + first)
        if end < len(series):
            yield start + end


def _search(series: Floats) -> tuple[int, int] | None:
    """Return the runs before and after which the series changes, or before which it does."""
    found = find_stretch(series, scan_steps)
    if found is None and len(series) >= 3 * FEWEST_PER_SIDE:
        return find_stretch(series, scan_stretches)
    return found


def _search_usual(series: Floats) -> tuple[int, int] | None:
    """Search without the few runs that are far from all others, wherever they are.

    In some permutations, these stand together and look like a level, which hides a change. Which
    ones they are does not depend on the order, so those that are left may be permuted as well.
    """
    residuals = np.abs(series - np.median(series))
    is_far = residuals > FAR * MAD_TO_SD * float(np.median(residuals))
    usual, few = np.flatnonzero(~is_far), MOST_FAR * len(series)
    if not 0 < is_far.sum() <= few or len(usual) < FEWEST_RUNS:
        return None
    found = _search(series[usual])
    if found is None:
        return None
    places = np.append(usual, len(series))
    return int(places[found[0]]), int(places[found[1]])


def find_stretch(series: Floats, scan: Scan) -> tuple[int, int] | None:
    """Return the runs that differ most from the rest, if hardly any permutation has such runs.

    Permutations are made in parts, and no more of them once too many have.
    """
    random = np.random.default_rng(0)
    shuffled = np.tile(series, (PART, 1))
    rows = np.concatenate([series[None, :], random.permuted(shuffled, axis=1)])
    squares, stretches, likeness = _largest(rows, scan)
    usual = float(likeness[1:].mean())  # noise of this size without any order
    statistics = _discounted(squares, likeness - usual)
    as_large = int((statistics[1:] >= statistics[0]).sum())
    allowed = FALSE_ALARMS / 2 * PARTS * PART - 1
    for _ in range(1, PARTS):
        if as_large > allowed:
            return None
        squares, _, likeness = _largest(random.permuted(shuffled, axis=1), scan)
        as_large += int((_discounted(squares, likeness - usual) >= statistics[0]).sum())
    first, end = map(int, stretches[0])
    return None if as_large > allowed else (first, end)


def _discounted(squares: Floats, likeness: Floats) -> Floats:
    """Return squared t as they would be if neighbouring runs did not resemble each other."""
    known = np.clip(likeness, 0.0, _HIGHEST_CORRELATION)
    return np.asarray(squares * (1 - known) / (1 + known))


def _largest(rows: Floats, scan: Scan) -> tuple[Floats, Ints, Floats]:
    """Return each row's largest difference as a squared t, its runs, and neighbours' likeness.

    It is found twice: outliers are known when the two levels are. Single ones are known before.
    """
    rows = _without_single(rows)
    _, stretches = scan(rows)
    places = np.arange(rows.shape[1])[None, :]
    is_inside = (places >= stretches[:, :1]) & (places < stretches[:, 1:])
    clean = _without_outliers(rows, is_inside)
    squares, stretches = scan(clean)
    # Levels would need all changes, of which this is the first: a running median keeps their edges.
    return squares, stretches, _correlation(clean - running_median(clean))


def _without_single(rows: Floats) -> Floats:
    """Return the rows with single far values replaced by the median of their neighbours."""
    spread = np.quantile(np.abs(rows - running_median(rows)), WITHIN_ONE_SD, axis=1, keepdims=True)
    near = running_median(rows, NEIGHBOURS)
    is_far = (np.abs(rows - near) > SINGLE * spread) & (spread > 0)
    are_few = is_far.sum(axis=1, keepdims=True) <= max(1.0, MOST_SINGLE * rows.shape[1])
    return np.where(is_far & are_few, near, rows) if rows.shape[1] >= MANY else rows


def running_median(rows: Floats, window: int = WINDOW) -> Floats:
    padded = np.pad(rows, ((0, 0), (window // 2, window // 2)), mode="reflect")
    return np.asarray(np.median(sliding_window_view(padded, window, axis=1), axis=2))


def _correlation(residuals: Floats) -> Floats:
    """Return how much each value resembles the next one, row by row."""
    squares = np.maximum((residuals**2).sum(axis=1), np.finfo(float).tiny)
    return np.asarray((residuals[:, 1:] * residuals[:, :-1]).sum(axis=1) / squares)


def _levels(rows: Floats, is_inside: Bools) -> Floats:
    """Return the mean of each row's side that a value is on."""
    found = np.zeros_like(rows)
    for side in (is_inside, ~is_inside):
        size = np.maximum(side.sum(axis=1, keepdims=True), 1)
        found += np.where(side, (rows * side).sum(axis=1, keepdims=True) / size, 0.0)
    return found


def _without_outliers(rows: Floats, is_inside: Bools) -> Floats:
    """Return the rows with far values moved towards the median of their side."""
    medians = np.zeros_like(rows)
    for side in (is_inside, ~is_inside):
        if side.any(axis=1).all():
            own = np.nanmedian(np.where(side, rows, np.nan), axis=1, keepdims=True)
            medians += np.where(side, own, 0.0)
    residuals = rows - medians
    limit = OUTLIER * MAD_TO_SD * np.median(np.abs(residuals), axis=1, keepdims=True)
    limit = np.where(limit > 0, limit, np.inf)
    return np.asarray(medians + np.clip(residuals, -limit, limit))


def _likeness_of_rows(residuals: Floats) -> Floats:
    """Return how many neighbouring runs count as one, from their correlation."""
    count, seen = residuals.shape[1], _correlation(residuals)
    # Without the levels of two sides, a short series seems less correlated than it is.
    known = np.clip(seen + (2 + 3 * seen) / count, 0.0, _HIGHEST_CORRELATION)
    return np.asarray((1 + known) / (1 - known))


def _likeness(series: Floats) -> float:
    return float(_likeness_of_rows((series - series.mean())[None, :])[0])


def difference_of_levels(before: Floats, after: Floats) -> Estimate:
    """Return the change between two levels, with a 95 % interval."""
    both = np.concatenate([before, after])[None, :]
    is_after = np.arange(len(both[0]))[None, :] >= len(before)
    clean = _without_outliers(both, is_after)
    residuals = clean - _levels(clean, is_after)
    freedom = len(both[0]) - 2
    variance = float((residuals**2).sum()) / freedom * float(_likeness_of_rows(residuals)[0])
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    delta = float(clean[0, len(before) :].mean() - clean[0, : len(before)].mean())
    return _as_share(delta, student_of_few(freedom) * error)


def _as_share(delta: float, half: float) -> Estimate:
    """Return a difference of logarithms as a share."""
    return Estimate(math.expm1(delta), math.expm1(delta - half), math.expm1(delta + half))


# Finds the runs of a series that differ most from the rest, in many rows at once.
FEWEST_PER_SIDE = 3
"""Fewer runs on one side of a change may be a disturbed machine."""

Scan: TypeAlias = Callable[[Floats], tuple[Floats, Ints]]
"""Finds the runs that differ most from the rest of a row: the first of them, and the one after."""


def scan_steps(rows: Floats) -> tuple[Floats, Ints]:
    """Return the largest squared t over all places of a step, and the runs after it."""
    count = rows.shape[1]
    left = np.arange(FEWEST_PER_SIDE, count - FEWEST_PER_SIDE + 1)
    stretches = np.stack([left, np.full_like(left, count)], axis=1)
    return _scan(rows, stretches)


def scan_stretches(rows: Floats) -> tuple[Floats, Ints]:
    """Return the largest squared t over all stretches inside each row, and the stretch."""
    count, fewest = rows.shape[1], FEWEST_PER_SIDE
    places = np.arange(fewest, count - fewest + 1)
    first, end = (places[each] for each in np.triu_indices(len(places), fewest))
    return _scan(rows, np.stack([first, end], axis=1))


def _scan(rows: Floats, stretches: Ints) -> tuple[Floats, Ints]:
    """Return each row's largest squared t of a stretch against the rest, and the stretch."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    totals = np.pad(np.cumsum(centred, axis=1), ((0, 0), (1, 0)))
    first, end = stretches.T
    size = end - first
    between = (totals[:, end] - totals[:, first]) ** 2 * count / (size * (count - size))
    best = between.argmax(axis=1)
    most = between[np.arange(len(rows)), best]
    rest = np.maximum((centred**2).sum(axis=1) - most, np.finfo(float).tiny)
    return most * (count - 2) / rest, np.asarray(stretches[best], dtype=np.int64)
