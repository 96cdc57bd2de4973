"""Finds the steps from which on a job is slower or quicker, as they come.

The mean of the last steps is compared with that of the steps before them, at many scales. What
differs by chance is learned from the run itself: the same difference at earlier places. So noise
that is autocorrelated or has heavy tails raises the threshold. A reader of a run that grows finds
the same changes as one of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from profkit.analysis.change_noise import (
    BY_MEAN,
    BY_MEDIAN,
    EARLIER,
    LevelNoise,
    Medians,
    means_before,
    scatter_of,
)
from profkit.frame.estimate import Floats

THRESHOLD = 5.5
"""A difference counts from this many of its own standard deviations on.

`benchmarks/midrun.py` counts what it costs: false alarms in healthy runs, and the delay.
"""

LEAST_CHANGE = 0.02
"""Smaller changes are no change: a run does not repeat itself more closely."""

FEWEST_BEFORE = 40
"""Fewer steps do not show what differs by chance."""

_CLIP, _CLIP_USUAL = 6.0, 1.5
"""For means, logarithms of times are clipped at so many standard deviations from their level.

If 10 % of the past are further away, as with two kinds of steps, at so many times their distance.
"""

_LEVEL_STEPS = 100
"""The level is the median of so many first steps."""

_LATEST = 8_192
"""What differs by chance is learned from so many steps at most, which bounds the time."""

_NOT_LEARNED, _LEAST_DIVIDED = 0.5, 128
"""The noise of so many steps is not learned from their last part: a change may have begun there.

Each part that is searched is as long as all before it, so that a change before the last part has
been searched for by then.
"""

_LAST_NOT_LEARNED = 16
"""Of fewer steps, so many last ones are not: a change in them is seen in the next part."""

_USUAL_SHARE, _UNUSUAL = 0.9, 1.25
"""Of few steps, most must be this much further from the past's middle than 90 % of its steps.

In a job with two kinds of steps, some successive ones are often of the slower kind.
"""

_SAME_SIDE = 0.75
"""This share of the later steps must be on the same side of the earlier steps' middle."""

_PLAIN_FROM, _PLAIN_PARTS, _PLAINLY = 16, 12, 2.5
"""Whatever the noise, a change is plain if the median of so many steps is this much further away
than the median of any of the past's parts, of which there are so many.
"""

_FIRST_CHUNK, _LARGEST_CHUNK = 32, 4_096

SHORT_PART = 8
"""The median of so many successive steps is compared with the usual ones."""

_LATEST_STEPS = 512
"""The last steps that are searched, if the new ones are fewer than half of them."""


@dataclass(frozen=True)
class Shift:
    """A change of the level: from place `at` on, seen once the place `seen` was there."""

    at: int
    seen: int
    rise: float
    """The change of the logarithm of the step time."""


Limits: TypeAlias = tuple[float, float]
"""The least difference that counts, in its own standard deviations, and in logarithms."""


def find_shifts(
    step_ns: Floats, *, threshold: float = THRESHOLD, least: float = LEAST_CHANGE
) -> list[Shift]:
    """Return the changes of the level of a series of step times, in their order."""
    logs = np.log(np.maximum(np.asarray(step_ns, dtype=np.float64), 1.0))
    found: list[Shift] = []
    first, noise, medians = 0, LevelNoise(), Medians(logs)
    while (shift := _first_shift(medians, first, noise, (threshold, least))) is not None:
        found.append(shift)
        first = shift.at
    return found


def _part_medians(logs: Floats, length: int) -> Floats:
    """Return the medians of the parts of this length, of which the last one ends the series."""
    count = len(logs) // length
    parts = logs[len(logs) - count * length :].reshape(count, length)
    return np.asarray(np.partition(parts, length // 2, axis=1)[:, length // 2])


def _middle(values: Floats) -> float:
    """Return the upper median, in a fraction of the time of `np.median`."""
    half = len(values) // 2
    return float(np.partition(values, half)[half])


def latest_shift(step_ns: Floats, new: int) -> Shift | None:
    """Return a change of the level in the last `new` steps.

    It takes a fifth of the time of `find_shifts`, if these are fewer than those before them.
    """
    if len(step_ns) - new < max(FEWEST_BEFORE, new):
        return next(reversed(find_shifts(step_ns)), None)
    first = max(0, len(step_ns) - max(_LATEST_STEPS, 2 * new))
    medians = Medians(np.log(np.maximum(step_ns[first:], 1.0)))
    part = len(medians.series) - new, len(medians.series)
    shift = _shift_in(medians, 0, part, LevelNoise(), (THRESHOLD, LEAST_CHANGE))
    if shift is None:
        return None
    return Shift(first + shift.at, first + shift.seen, shift.rise)


def _first_shift(medians: Medians, first: int, noise: LevelNoise, limits: Limits) -> Shift | None:
    """Return the first change after place `first`, where a level begins."""
    for part in _chunks(first + FEWEST_BEFORE, len(medians.series)):
        shift = _shift_in(medians, first, part, noise, limits)
        if shift is not None:
            return shift
    return None


def _shift_in(
    medians: Medians, first: int, part: tuple[int, int], noise: LevelNoise, limits: Limits
) -> Shift | None:
    """Return the first change seen in a part, by the noise of the steps from `first` to it."""
    begin, end = part
    logs = medians.series
    past = logs[max(first, begin - _LATEST) : begin]
    scatter = scatter_of(past)
    level = float(np.median(past[:_LEVEL_STEPS]))
    quiet = known = past[: _count_known(len(past))]
    far = float(np.quantile(np.abs(known - level), _USUAL_SHARE))
    reach = max(_CLIP * scatter, _CLIP_USUAL * far)
    if len(past) >= _LEAST_DIVIDED:
        quiet = past[: round(len(past) * (1 - _NOT_LEARNED))]
    offset = begin - len(past)
    noise.learn(quiet, level, scatter, reach, medians.after(offset), is_later=first > 0)
    # What came before the past that is looked at is no longer needed.
    series = logs[offset:end]
    clipped = np.clip(series - level, -reach, reach)
    alarm = _first_alarm(series, clipped, medians.after(offset), len(past), noise, limits)
    if alarm is None:
        return None
    place, scale = alarm
    later = float(np.median(series[place - scale : place]))
    reach = max(reach, 2 * abs(later - level))
    at = offset + _split(np.clip(series[:place] - level, -reach, reach), scale)
    rise = float(np.median(logs[at : offset + place]) - np.median(logs[first:at]))
    return Shift(at, offset + place - 1, rise)


def _count_known(past: int) -> int:
    """Return how many of the steps before a part show what is usual."""
    return past if past >= _LEAST_DIVIDED else max(FEWEST_BEFORE, past - _LAST_NOT_LEARNED)


def _chunks(begin: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield growing parts of the series, so that the noise is learned again from time to time."""
    size = _FIRST_CHUNK
    while begin < count:
        yield begin, min(count, begin + size)
        begin += size
        size = min(_LARGEST_CHUNK, size * 2)


def _first_alarm(
    series: Floats,
    clipped: Floats,
    medians: Medians,
    begin: int,
    noise: LevelNoise,
    limits: Limits,
) -> tuple[int, int] | None:
    """Return the number of steps at the first alarm after `begin`, and its scale."""
    found: tuple[int, int] | None = None
    past = series[: _count_known(begin)]
    usual = _UNUSUAL * float(np.quantile(np.abs(past - np.median(past)), _USUAL_SHARE))
    plain = _plain_distance(past)
    for scale in (*BY_MEDIAN, *BY_MEAN):
        by_median = scale in BY_MEDIAN
        fewest = (1 + EARLIER) * scale if by_median else scale + FEWEST_BEFORE
        ends = np.arange(max(begin + 1, fewest), (found[0] if found else len(series)) + 1)
        if not len(ends):
            continue
        later, earlier = (
            medians.at(ends, scale) if by_median else means_before(clipped, ends, scale)
        )
        count = np.minimum(EARLIER * scale, ends - scale)
        # A shorter earlier part varies more.
        longer = np.sqrt((1 / scale + 1 / count) / ((1 + 1 / EARLIER) / scale))
        least = limits[0] * noise.by_scale[scale] * longer
        if by_median and scale >= _PLAIN_FROM:
            least = np.minimum(least, plain)
        least = np.maximum(limits[1], least)
        for place in np.flatnonzero(np.abs(later - earlier) > least).tolist():
            end = int(ends[place])
            middle = float(np.median(series[end - scale - int(count[place]) : end - scale]))
            sign = 1.0 if later[place] > earlier[place] else -1.0
            beyond = sign * (series[end - scale : end] - middle)
            if (beyond > (usual if by_median else 0.0)).mean() >= _SAME_SIDE:
                found = end, scale
                break
    return found


def _plain_distance(past: Floats) -> float:
    """Return how far from the past's middle a change is plain; infinite after too few steps."""
    medians = _part_medians(past, SHORT_PART)
    if len(medians) < _PLAIN_PARTS:
        return math.inf
    return _PLAINLY * float(np.abs(medians - _middle(past)).max())


def _split(series: Floats, scale: int) -> int:
    """Return the place that divides the end of a series best into two levels."""
    begin = max(0, len(series) - (1 + EARLIER) * scale)
    part = series[begin:]
    count = len(part)
    places = np.arange(1, count)
    sums = np.cumsum(part)[:-1]
    apart = np.abs(sums / places - (part.sum() - sums) / (count - places))
    return begin + int(places[np.argmax(apart * np.sqrt(places * (count - places)))])
