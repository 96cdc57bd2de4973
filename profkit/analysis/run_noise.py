"""Intervals that hold the noise between repeats of a run.

Steps of one run share what that run met: its memory, its neighbours, its place on the machine. So
the interval over all steps is at least the one that the runs' own figures give.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from profkit.frame.costs import RunCosts
from profkit.frame.estimate import (
    USUAL_LEVEL,
    Estimate,
    Floats,
    Ints,
    divide,
    estimate_ratios,
    subtract,
)
from profkit.frame.student import student_of_few

MOST_FACTOR = 4.0
"""Noise multiplies a figure if no two repeats differ by more than this factor.

Other figures, such as a rare wait, are near zero in some repeats; there noise adds.
"""

FEWEST_ROUNDS = 3
"""Differences of fewer rounds have too few degrees of freedom."""

LEVEL_OF_RUNS, LEVEL_OF_ROUNDS = 0.957, 0.990
"""The levels of two intervals, of which the narrower one is right in 95 % of comparisons.

`tests/analysis/test_run_noise.py` simulates it.
"""

MOST_REPEATS, Z_80 = 30, 0.8416
"""Nobody repeats a job more often than this; the 80 % quantile of a normal variable."""


class Rounds(NamedTuple):
    """The orders of each side's runs in which the runs at one place took turns."""

    base: Ints
    target: Ints


def find_rounds(base_ns: Sequence[int], target_ns: Sequence[int]) -> Rounds | None:
    """Return the rounds of repeats that took turns, from the times at which they began.

    Each round is one run per side, and ends before the next begins. Otherwise there are none.
    """
    if len(base_ns) != len(target_ns) or len(base_ns) < FEWEST_ROUNDS:
        return None
    times = np.array([base_ns, target_ns])
    orders = np.argsort(times, axis=1)
    began_ns = np.take_along_axis(times, orders, axis=1)
    if not (began_ns.max(axis=0)[:-1] < began_ns.min(axis=0)[1:]).all():
        return None
    return Rounds(orders[0], orders[1])


def run_ratios(numerators: Floats, denominators: Floats, repeats: Sequence[int]) -> Floats:
    """Return each quantity's ratio in each run, as an array of (quantity, run)."""
    counts = repeats or (numerators.shape[1],)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    above = np.add.reduceat(numerators, starts, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above / np.add.reduceat(denominators, starts, axis=1))


def estimate_within(
    numerators: Floats, denominators: Floats, repeats: Sequence[int]
) -> list[Estimate]:
    """Estimate ratios as `estimate_ratios` does, with the noise within runs alone.

    Repeats that differ would look like a slow drift of one run, so each is moved to their mean.
    """
    if len(repeats) < 2:
        return estimate_ratios(numerators, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = numerators.sum(axis=1) / denominators.sum(axis=1)
    moves = run_ratios(numerators, denominators, repeats) - values[:, None]
    moves = np.repeat(np.where(np.isfinite(moves), moves, 0.0), repeats, axis=1)
    found = []
    for value, each, steps in zip(
        values.tolist(),
        estimate_ratios(numerators - moves * denominators, denominators),
        numerators,
        strict=True,
    ):
        low = each.low
        if low is not None and (steps >= 0).all():
            low = max(0.0, low)  # as in `estimate_ratios`
        found.append(dataclasses.replace(each, value=value, low=low))
    return found


def estimate_repeats(
    numerators: Floats, denominators: Floats, repeats: Sequence[int]
) -> list[Estimate]:
    """Estimate ratios with the noise within runs and between them."""
    within = estimate_within(numerators, denominators, repeats)
    return widen(within, numerators, denominators, repeats)


def widen(
    estimates: Sequence[Estimate], numerators: Floats, denominators: Floats, repeats: Sequence[int]
) -> list[Estimate]:
    """Widen the intervals as far as the repeats' own ratios demand."""
    if len(repeats) < 2:
        return list(estimates)
    ratios = run_ratios(numerators, denominators, repeats)
    student = student_of_few(len(repeats) - 1) / math.sqrt(len(repeats))
    widened = []
    for estimate, runs, steps in zip(estimates, ratios, numerators, strict=True):
        if estimate.low is None or estimate.high is None:
            widened.append(estimate)
            continue
        value = estimate.value
        if _is_multiplied(runs) and value > 0:
            factor = math.exp(student * float(np.log(runs).std(ddof=1)))
            low, high = value / factor, value * factor
        else:
            half = student * float(runs.std(ddof=1))
            low, high = value - half, value + half
            if (steps >= 0).all():
                low = max(0.0, low)
        widened.append(Estimate(value, min(estimate.low, low), max(estimate.high, high)))
    return widened


def _is_multiplied(*sides: Floats) -> bool:
    """Return true if the figures of each side's runs are positive and of one size."""
    return all(
        np.isfinite(runs).all() and runs.min() > 0 and runs.max() <= MOST_FACTOR * runs.min()
        for runs in sides
    )


def difference(base: Estimate, target: Estimate) -> Estimate:
    """Return how much the target is above the base, two independent figures.

    If the noise reaches below minus the base, it is the difference that the quotient of positive
    figures makes, which cannot.
    """
    found = subtract(target, base)
    if found.low is None or found.low >= -base.value:
        return found
    if base.low is None or target.low is None or min(base.low, target.low) <= 0:
        return found
    quotient = divide(target, base)
    if quotient.low is None or quotient.high is None:
        return found
    low, high = base.value * (quotient.low - 1), base.value * (quotient.high - 1)
    return Estimate(found.value, min(low, found.value), max(high, found.high or high), found.level)


def widen_difference(
    delta: Estimate,
    base: Floats,
    target: Floats,
    *,
    base_value: float,
    rounds: Rounds | None = None,
) -> Estimate:
    """Widen the interval of a difference for the noise between runs, by Student's t.

    `base` and `target` hold the figure of each run, and `base_value` is that of the whole base.
    Without any repeats the interval stays as it is. Noise of time multiplies, so the logarithms of
    figures count, and no interval reaches below nothing. Of others, what a side may be less is at
    most all that it has.
    """
    value, target_value = delta.value, base_value + delta.value
    if _is_multiplied(base, target) and min(base_value, target_value) > 0:
        noise = _noise(np.log(base), np.log(target), rounds)
        if noise is None:
            return delta
        factor = math.exp(noise.half)
        low, high = target_value / factor - base_value, target_value * factor - base_value
    else:
        noise = _noise(base, target, rounds)
        if noise is None:
            return delta
        before, after = (
            noise.half * math.sqrt(noise.of_base),
            noise.half * math.sqrt(noise.of_target),
        )
        less_before, less_after = before, after
        if base.min() >= 0 and target.min() >= 0:
            less_before, less_after = min(before, base_value), min(after, target_value)
        low, high = value - math.hypot(before, less_after), value + math.hypot(less_before, after)
    if delta.low is not None and delta.high is not None:
        low, high = min(delta.low, low), max(delta.high, high)
    return Estimate(value, low, high, delta.level)


def keep_possible(delta: Estimate, base_value: float, *sides: Ints | None) -> Estimate:
    """Return a difference that is no gain of more than all that the base takes.

    It is about the time of the base as it was measured, of which no job can save more. What is
    below zero in some step has no such limit.
    """
    is_time = all(side is None or (side >= 0).all() for side in sides)
    if not is_time or delta.low is None:
        return delta
    return dataclasses.replace(delta, low=max(delta.low, min(-base_value, delta.value)))


def repeats_to_tell(delta: Estimate, runs: int) -> int | None:
    """Return how many repeats per side find a change of this size in 80 % of comparisons.

    `runs` is how many there are. The answer is at most `MOST_REPEATS`, and `None` without noise.
    """
    if delta.low is None or delta.high is None or not delta.high > delta.low:
        return None
    half = (delta.high - delta.low) / 2
    spread = half / (student_of_few(2 * runs - 2) * math.sqrt(2 / runs))
    for count in range(runs + 1, MOST_REPEATS):
        if (student_of_few(2 * count - 2) + Z_80) * spread * math.sqrt(2 / count) <= abs(
            delta.value
        ):
            return count
    return MOST_REPEATS


class _Noise(NamedTuple):
    """Half the interval of a difference, and the parts of its variance that each side adds."""

    half: float
    of_base: float
    of_target: float


def _noise(base: Floats, target: Floats, rounds: Rounds | None) -> _Noise | None:
    """Return the noise of the difference of two sides' means; `None` without any repeats.

    Sides of equally many runs are taken to be equally noisy. Otherwise Welch's test allows one side
    to be noisier. The only run of a side is as noisy as the repeats of the other. If the sides took
    turns, what changed from round to round met both: then the differences within rounds may show
    less noise, from fewer degrees of freedom.
    """
    spreads: list[tuple[float, float]] = []
    for runs in (base, target):
        if len(runs) > 1 and np.isfinite(runs).all():
            spreads.append((float(runs.var(ddof=1)), len(runs) - 1))
    if not spreads:
        return None
    (before, freedom), (after, other) = spreads[0], spreads[-1]
    before, after = before / len(base), after / len(target)
    error = before + after
    if not error > 0:
        return _Noise(0.0, 0.5, 0.5)
    if len(spreads) > 1 and len(base) == len(target):
        freedom += other
    elif len(spreads) > 1:
        freedom = error**2 / (before**2 / freedom + after**2 / other)
    level = LEVEL_OF_RUNS if rounds else USUAL_LEVEL
    half = student_of_few(freedom, level) * math.sqrt(error)
    if rounds is not None and len(spreads) > 1:
        within = (target[rounds.target] - base[rounds.base]).std(ddof=1) / math.sqrt(len(base))
        half = min(half, student_of_few(len(base) - 1, LEVEL_OF_ROUNDS) * float(within))
    return _Noise(half, before / error, after / error)


class TimesPerSample(NamedTuple):
    """Time per sample per GPU of each part."""

    within: Sequence[Estimate]
    """With intervals that only know the noise within runs."""
    widened: Sequence[Estimate]
    """With intervals that hold the noise between repeats, too."""
    runs: Floats
    """The time in each run, by part."""


def times_per_sample(
    parts: Mapping[str, Ints], names: Sequence[str], costs: RunCosts
) -> TimesPerSample:
    """Return the time per sample per GPU of each part."""
    if not costs.steps:
        unknown = [Estimate(math.nan)] * len(names)
        return TimesPerSample(unknown, unknown, np.full((len(names), 1), np.nan))
    nothing = np.zeros(costs.steps)
    stacked = np.stack([parts.get(name, nothing) for name in names]).astype(np.float64)
    samples = np.broadcast_to(costs.samples.astype(np.float64), stacked.shape)
    within = estimate_within(stacked, samples, costs.repeats)
    widened = widen(within, stacked, samples, costs.repeats)
    return TimesPerSample(within, widened, run_ratios(stacked, samples, costs.repeats))
