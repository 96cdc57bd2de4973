"""The time per sample per GPU of each cell of a matrix, over its repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from profkit.analysis.matrix import Cell, Setting
from profkit.frame.costs import RunCosts
from profkit.frame.estimate import Estimate, estimate_ratios
from profkit.frame.student import student_of_few

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """A cell's time per sample per GPU, and its parts; `parts` is empty if they are not known."""

    setting: Setting
    total: Estimate
    parts: Mapping[str, float] = field(default_factory=dict)
    repeats: int = 1


def groups_of(items: Iterable[T], key: Callable[[T], object]) -> Iterable[list[T]]:
    """Return the items in groups of equal keys, in the order of their first items."""
    found: dict[object, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found.values()


def combine(terms: Iterable[tuple[float, Estimate]]) -> Estimate:
    """Return a weighted sum of independent figures, whose deviations add up as squares.

    It has no interval if one of the figures has none.
    """
    value = below = above = 0.0
    judged = True
    for weight, term in terms:
        value += weight * term.value
        if term.low is None or term.high is None:
            judged = False
            continue
        down, up = abs(weight) * (term.value - term.low), abs(weight) * (term.high - term.value)
        if weight <= 0:
            down, up = up, down
        below, above = math.hypot(below, down), math.hypot(above, up)
    if judged:
        return Estimate(value, value - below, value + above)
    return Estimate(value)


def time_cells(runs: Mapping[Setting, Sequence[RunCosts]]) -> tuple[Timing, ...]:
    """Return the time of each cell over its repeats; cells without usable runs are excluded.

    Repeats differ by more than the steps of one run show. If there are repeats, an interval is at
    least as wide as the scatter of the repeats of all cells together. The scatter is a share of
    the time, because longer steps scatter more. `freedom` is its degrees of freedom.
    """
    usable: dict[Setting, list[RunCosts]] = {}
    times: dict[Setting, list[Estimate]] = {}
    for setting, repeats in runs.items():
        kept = [costs for costs in repeats if costs.steps and costs.samples.any()]
        if kept:
            usable[setting] = kept
            times[setting] = []
            for costs in kept:
                wall_ns, samples = costs.wall_ns[None, :], costs.samples[None, :]
                time = estimate_ratios(wall_ns.astype(np.float64), samples.astype(np.float64))
                times[setting] += time
    squares, freedom = 0.0, 0
    for own in times.values():
        logs = np.log([time.value for time in own])
        squares += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(own) - 1
    scatter = math.sqrt(squares / freedom) if freedom else 0.0
    timings = []
    for setting, own in times.items():
        value = float(np.mean([time.value for time in own]))
        total, within = Estimate(value), combine([(1 / len(own), time) for time in own])
        if within.low is not None and within.high is not None:
            factor = 1.0
            if freedom:
                factor = math.exp(student_of_few(freedom) * scatter / math.sqrt(len(own)))
            low, high = min(within.low, value / factor), max(within.high, value * factor)
            total = Estimate(value, low, high)
        timings.append(Timing(setting, total, _mean_parts(usable[setting]), len(own)))
    return tuple(timings)


def _mean_parts(repeats: Sequence[RunCosts]) -> dict[str, float]:
    """Return the parts per sample over all repeats, or nothing if one of them has no phases."""
    by_name: dict[str, list[float]] = {}
    for place, costs in enumerate(repeats):
        if not costs.knows_phases:
            return {}
        for name, ns in costs.parts.items():
            values = by_name.setdefault(name, [0.0] * len(repeats))
            values[place] = float(ns.sum()) / float(costs.samples.sum())
    return {name: float(np.mean(values)) for name, values in by_name.items()}


def published_timings(cells: Iterable[Cell]) -> tuple[Timing, ...]:
    """Return the times of published cells, which have no intervals and no parts."""
    timings = []
    for cell in cells:
        if cell.measured:
            timings.append(Timing(cell.setting, replace(cell.sample_ns, low=None, high=None)))
    return tuple(timings)
