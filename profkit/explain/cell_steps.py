"""Finds which steps are longer: of a period, rare ones, from one on, or ever more.

The answer comes from the lengths of the steps themselves. What long steps take beyond the usual
ones is counted, so that a few of them do not disappear in the interval of a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from profkit.explain.policy import POLICY
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Floats, Ints, binomial_bound
from profkit.text import plural

TO_SIGMA = 1.4826
"""The standard deviation of a normal variable, in medians of its absolute value."""


class When(str, Enum):
    """The kinds of steps that a cell can be about."""

    ALL = "all"
    PERIODIC = "periodic"
    RARE = "rare"
    SINCE = "since"
    GROWING = "growing"


@dataclass(frozen=True)
class Steps:
    """The steps of a cell."""

    when: When = When.ALL
    period: int = 0
    first: int = 0
    """The first long step of a period, or the first step of the new level."""
    long: int = 0
    """The number of long steps."""
    of: int = 0
    """The number of all steps."""

    @property
    def kind(self) -> When:
        """What is compared with each other: long steps, whatever their period, are of one kind.

        A run may have a second rhythm, or a busy machine may hide the first one.
        """
        return When.RARE if self.when is When.PERIODIC else self.when

    def words(self) -> str:
        """Return the steps as they stand in a sentence."""
        if self.when is When.PERIODIC:
            return f"every {_ordinal(self.period)} step"
        if self.when is When.RARE:
            return f"{self.long:,} of {plural(self.of, 'step')}"
        if self.when is When.SINCE:
            return f"from step {self.first:,} on"
        if self.when is When.GROWING:
            return "more with every step"
        return "every step"


EVERY = Steps()


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number // 10 % 10 == 1 else ending}"


@dataclass(frozen=True)
class Pattern:
    """The long steps of one series, and what they take beyond the usual ones."""

    steps: Steps
    excess: Floats
    """By step, in the series' unit; zero in usual steps."""

    @property
    def is_long(self) -> Bools:
        return np.asarray(self.excess != 0)


def find_pattern(ns: Floats, numbers: Ints, step_ns: float, *, is_one_run: bool) -> Pattern | None:
    """Return which steps of a series are longer than its others, or `None`.

    `numbers` are those of the steps, `step_ns` is the length of a usual one. Levels and trends are
    looked for in one run only: repeats of it differ.
    """
    if len(ns) < 2 * POLICY.fewest_of_level or not step_ns > 0:
        return None
    for pattern in _candidates(ns, numbers, step_ns, is_one_run=is_one_run):
        if abs(float(pattern.excess.mean())) >= POLICY.shown_share * step_ns:
            return pattern
    return None


def _candidates(
    ns: Floats, numbers: Ints, step_ns: float, *, is_one_run: bool
) -> Iterator[Pattern]:
    high = _long_class(ns, step_ns)
    if high is not None:
        usual = float(np.median(ns[~high]))
        if is_one_run and (level := _as_level(ns, numbers, high)):
            yield level
        period, offset = _find_period(numbers, high)
        when = When.RARE
        if period:  # a busy machine makes others long, too
            when, high = When.PERIODIC, high & (numbers % period == offset)
        long = int(high.sum())
        if period or long <= POLICY.most_rare_share * len(ns):
            steps = Steps(when, period, int(numbers[high][0]), long, len(ns))
            yield Pattern(steps, np.where(high, ns - usual, 0.0))
    elif is_one_run:
        yield from _lasting(ns, numbers, step_ns)


def _long_class(ns: Floats, step_ns: float) -> Bools | None:
    """Return the longer of two classes of steps that are far apart, by Otsu's threshold."""
    values = np.sort(ns)
    count, below = np.arange(1, len(values)), np.cumsum(values)[:-1]
    above = values.sum() - below
    gap = above / (len(values) - count) - below / count
    between = count * (len(values) - count) * gap**2
    cut = int(np.argmax(between))
    threshold = (values[cut] + values[cut + 1]) / 2
    high = np.asarray(ns > threshold)
    if int(high.sum()) < POLICY.fewest_long or int((~high).sum()) < POLICY.fewest_long:
        return None
    low = ns[~high]
    usual = float(np.median(low))
    spread = TO_SIGMA * float(np.median(np.abs(low - usual)))
    least = max(POLICY.long_spreads * spread, POLICY.long_share * step_ns)
    # Steps between both classes belong to the long ones if they are as far out.
    is_far = np.asarray(ns > usual + least)
    if float(np.median(ns[high])) - usual < least or is_far.mean() > 1 - POLICY.most_rare_share:
        return None
    return is_far if int(is_far.sum()) >= POLICY.fewest_long else None


def _find_period(numbers: Ints, high: Bools) -> tuple[int, int]:
    """Return the distance at which steps are long, and where they begin; zeros without one.

    Nearly all steps at that distance are long, and nearly all that are long are there. Others may
    be long by chance, if by chance there would not be so many there.
    """
    long, share = numbers[high], float(high.mean())
    if len(long) < POLICY.fewest_long:
        return 0, 0
    longest = max(2, len(numbers) // POLICY.fewest_long)
    for period in range(2, longest + 1):
        places = np.bincount(long % period, minlength=period)
        offset = int(np.argmax(places))
        count, of_offset = int(places[offset]), int((numbers % period == offset).sum())
        if count < POLICY.same_period_share * of_offset:
            continue
        is_most = count >= POLICY.same_period_share * len(long)
        tries = sum(range(2, longest + 1))
        if is_most or tries * binomial_bound(count, of_offset - count, share) <= 1 - POLICY.certain:
            return period, offset
    return 0, 0


def _as_level(ns: Floats, numbers: Ints, high: Bools) -> Pattern | None:
    """Return the long steps as those from one step on, if nearly all others are before it."""
    after = np.concatenate([[0], np.cumsum(~high)])  # short steps before each place
    late = high.sum() - np.concatenate([[0], np.cumsum(high)])  # long ones from it on
    right = after + late
    place = int(np.argmax(right))
    is_long_enough = POLICY.fewest_of_level <= place <= len(ns) - POLICY.fewest_of_level
    if not is_long_enough or right[place] < POLICY.level_share * len(ns):
        return None
    return _level_from(ns, numbers, place)


def _level_from(ns: Floats, numbers: Ints, place: int) -> Pattern:
    excess = np.where(np.arange(len(ns)) >= place, ns - float(np.median(ns[:place])), 0.0)
    steps = Steps(When.SINCE, 0, int(numbers[place]), len(ns) - place, len(ns))
    return Pattern(steps, excess)


def _lasting(ns: Floats, numbers: Ints, step_ns: float) -> Iterator[Pattern]:
    """Yield a change of level, or a slope, whichever leaves less unexplained."""
    count, least = len(ns), POLICY.fewest_of_level
    before = np.arange(least, count - least + 1)
    if not len(before):
        return
    sums = np.concatenate([[0.0], np.cumsum(ns)])
    rise = (sums[-1] - sums[before]) / (count - before) - sums[before] / before
    weight = before * (count - before) / count
    best = int(np.argmax(weight * rise**2))
    place, squares = int(before[best]), float(weight[best] * rise[best] ** 2)
    residual = np.abs(np.diff(ns))
    noise = TO_SIGMA * float(np.median(residual)) / np.sqrt(2)
    at = np.arange(count) - (count - 1) / 2
    slope = float(at @ ns / (at @ at))
    of_slope = slope**2 * float(at @ at)
    is_clear = max(squares, of_slope) > (POLICY.level_errors * noise) ** 2
    if not is_clear or _reverses(ns):
        return
    if of_slope >= squares and slope > 0:
        excess = np.maximum(0.0, slope * (at - at[0]))
        yield Pattern(Steps(When.GROWING, 0, int(numbers[0]), count, count), excess)
    elif of_slope < squares and rise[best] >= POLICY.long_share * step_ns:
        yield _level_from(ns, numbers, place)


def _reverses(ns: Floats) -> bool:
    """Return true if the tenths of a run do not mostly rise: it wanders."""
    blocks = np.array([np.median(part) for part in np.array_split(ns, POLICY.tenths)])
    later, earlier = np.triu_indices(len(blocks), 1)[::-1]
    return bool((blocks[later] > blocks[earlier]).mean() < POLICY.rising_share)
