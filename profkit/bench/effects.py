"""What AMP, DALI, more GPUs and a larger batch each give, and how much they depend on each other.

An effect is the difference of two cells that differ in one thing alone, in time per sample per GPU. An
interaction is the difference of two such effects. Where the parts of the steps were measured, the
interaction has the same parts, and the one that makes most of it is its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import NEGLIGIBLE, Estimate, estimate_ratios, scale, student_95
from profkit.analysis.matrix import Cell, Setting
from profkit.analysis.phases import UNKNOWN

AXES: Final = ("precision", "loader", "gpus", "batch_size")
"""What is varied, in the order in which effects are told."""

DECISIVE: Final = 0.5
"""A part is the reason of an interaction when it makes more than this share of it."""


@dataclass(frozen=True)
class Timing:
    """A cell's time per sample per GPU, and where it goes; `parts` is empty where nobody knows."""

    setting: Setting
    total: Estimate
    parts: Mapping[str, float] = field(default_factory=dict)
    repeats: int = 1


@dataclass(frozen=True)
class Effect:
    """What changes when one thing does, all else being equal; in ns per sample per GPU, and as a share of the base."""

    axis: str
    base: Timing
    target: Timing

    @property
    def delta(self) -> Estimate:
        return combine([(1.0, self.target.total), (-1.0, self.base.total)])

    @property
    def share(self) -> Estimate:
        return scale(self.delta, 1 / self.base.total.value)

    @property
    def sure(self) -> bool:
        """Whether it stands out of the noise and is more than next to nothing."""
        return excludes_zero(self.delta) and abs(self.share.value) >= NEGLIGIBLE

    @property
    def levels(self) -> tuple[Any, Any]:
        return getattr(self.base.setting, self.axis), getattr(self.target.setting, self.axis)


@dataclass(frozen=True)
class MainEffect:
    """The same change in all settings in which it was measured, on average."""

    axis: str
    levels: tuple[Any, Any]
    delta: Estimate
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Interaction:
    """One effect at two levels of something else: `delta` is by how much the second differs from the first."""

    first: Effect
    second: Effect
    other_axis: str
    delta: Estimate
    reason: str = ""
    """The part that makes more than half of the difference; empty where none does, or parts are not known."""

    reason_ns: float = math.nan

    @property
    def sure(self) -> bool:
        return (
            excludes_zero(self.delta)
            and abs(self.delta.value) >= NEGLIGIBLE * self.first.base.total.value
        )

    @property
    def other_levels(self) -> tuple[Any, Any]:
        return getattr(self.first.base.setting, self.other_axis), getattr(
            self.second.base.setting, self.other_axis
        )


@dataclass(frozen=True)
class Effects:
    """All that a matrix tells of what its axes do."""

    effects: tuple[Effect, ...]
    main: tuple[MainEffect, ...]
    interactions: tuple[Interaction, ...]

    @property
    def judged(self) -> bool:
        return all(effect.delta.judged for effect in self.effects)


def combine(terms: Iterable[tuple[float, Estimate]]) -> Estimate:
    """A weighted sum of independent figures, whose deviations add up as squares; without an interval where one of them has none."""
    value = below = above = 0.0
    judged = True
    for weight, term in terms:
        value += weight * term.value
        if term.low is None or term.high is None:
            judged = False
            continue
        down, up = abs(weight) * (term.value - term.low), abs(weight) * (term.high - term.value)
        down, up = (down, up) if weight > 0 else (up, down)
        below, above = math.hypot(below, down), math.hypot(above, up)
    return Estimate(value, value - below, value + above) if judged else Estimate(value)


def excludes_zero(delta: Estimate) -> bool:
    return delta.low is not None and delta.high is not None and not delta.low <= 0 <= delta.high


# -- from runs to times ----------------------------------------------------------------------------


def time_cells(runs: Mapping[Setting, Sequence[RunCosts]]) -> tuple[Timing, ...]:
    """The time of each cell over its repeats.

    Repeats differ by more than the steps of one run tell: where there are any, an interval is at least what the repeats
    of all cells together scatter, which is told as a share because longer steps scatter more.
    """
    usable = {
        setting: [costs for costs in repeats if costs.steps and costs.samples.any()]
        for setting, repeats in runs.items()
    }
    found = {
        setting: [_time_of(costs) for costs in repeats]
        for setting, repeats in usable.items()
        if repeats
    }
    scatter, freedom = _scatter(list(found.values()))
    return tuple(
        Timing(
            setting,
            _over_repeats(times, scatter, freedom),
            _mean_parts(usable[setting]),
            len(times),
        )
        for setting, times in found.items()
    )


def _time_of(costs: RunCosts) -> Estimate:
    (time,) = estimate_ratios(
        costs.wall_ns[None, :].astype(np.float64), costs.samples[None, :].astype(np.float64)
    )
    return time


def _scatter(cells: Sequence[Sequence[Estimate]]) -> tuple[float, int]:
    """By which share repeats of one cell differ from each other, and in how many degrees of freedom that was seen."""
    squares, freedom = 0.0, 0
    for times in cells:
        logs = np.log([time.value for time in times])
        squares += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(times) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (0.0, 0)


def _over_repeats(times: Sequence[Estimate], scatter: float, freedom: int) -> Estimate:
    value = float(np.mean([time.value for time in times]))
    within = combine([(1 / len(times), time) for time in times])
    if within.low is None or within.high is None:
        return Estimate(value)
    between = _student(freedom) * scatter * value / math.sqrt(len(times)) if freedom else 0.0
    return Estimate(value, min(within.low, value - between), max(within.high, value + between))


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, in closed form where the expansion does not hold."""
    exact = {1: math.tan(math.pi * 0.475), 2: 0.95 / math.sqrt(2 * 0.975 * 0.025)}
    return exact.get(freedom) or student_95(freedom)


def _mean_parts(repeats: Sequence[RunCosts]) -> dict[str, float]:
    """Per sample, over all repeats; nothing where one of them knows no phases."""
    if not all(costs.knows_phases for costs in repeats):
        return {}
    each = [
        {name: float(ns.sum()) / float(costs.samples.sum()) for name, ns in costs.parts.items()}
        for costs in repeats
    ]
    return {
        name: float(np.mean([parts.get(name, 0.0) for parts in each]))
        for name in dict.fromkeys(name for parts in each for name in parts)
    }


def published_timings(cells: Iterable[Cell]) -> tuple[Timing, ...]:
    """The times of cells that somebody has published, which have no intervals and no parts."""
    return tuple(
        Timing(cell.setting, replace(cell.sample_ns, low=None, high=None))
        for cell in cells
        if cell.measured
    )


# -- from times to effects -------------------------------------------------------------------------


def find_effects(timings: Iterable[Timing]) -> Effects:
    """Every effect that the cells allow; each axis is told from its first level on, such as fp32, or 1 GPU."""
    by_setting = {timing.setting: timing for timing in timings}
    effects = tuple(effect for axis in AXES for effect in _effects_of(axis, by_setting))
    return Effects(effects, tuple(_main_effects(effects)), tuple(_interactions(effects)))


def _effects_of(axis: str, by_setting: Mapping[Setting, Timing]) -> Iterator[Effect]:
    levels = _levels(axis, by_setting)
    for level in levels[1:]:
        for setting, base in sorted(by_setting.items()):
            target = by_setting.get(replace(setting, **{axis: level}))
            if getattr(setting, axis) == levels[0] and target is not None:
                yield Effect(axis, base, target)


def _levels(axis: str, settings: Iterable[Setting]) -> list[Any]:
    """In the order in which people compare them: full precision and the framework's own loader come first."""
    found = {getattr(setting, axis) for setting in settings}
    if axis == "precision":
        return sorted(found, key=lambda level: (Setting(1, level, 1).mixed, level))
    if axis == "loader":
        return sorted(found, key=lambda level: ("dali" in level.lower(), level))
    return sorted(found)


def _main_effects(effects: Sequence[Effect]) -> Iterator[MainEffect]:
    for axis, levels in dict.fromkeys((effect.axis, effect.levels) for effect in effects):
        own = tuple(effect for effect in effects if (effect.axis, effect.levels) == (axis, levels))
        yield MainEffect(
            axis, levels, combine([(1 / len(own), effect.delta) for effect in own]), own
        )


def _interactions(effects: Sequence[Effect]) -> Iterator[Interaction]:
    """Each pair of axes once: how the effect of the first depends on the level of the second."""
    for place, axis in enumerate(AXES):
        own = [effect for effect in effects if effect.axis == axis]
        for other in AXES[place + 1 :]:
            levels = _levels(other, (effect.base.setting for effect in own))
            yield from (
                _interaction(first, second, other)
                for first in own
                for second in own
                if _differ_in(other, levels, first, second)
            )


def _differ_in(other: str, levels: Sequence[Any], first: Effect, second: Effect) -> bool:
    """Whether the two are one change at the first level of the other axis and at a further one, all else being equal."""
    at_first, at_second = getattr(first.base.setting, other), getattr(second.base.setting, other)
    same = replace(second.base.setting, **{other: at_first}) == first.base.setting
    return (
        same and first.levels == second.levels and at_first == levels[0] and at_second != at_first
    )


def _interaction(first: Effect, second: Effect, other: str) -> Interaction:
    delta = combine([(1.0, second.delta), (-1.0, first.delta)])
    reason, reason_ns = _reason(first, second, delta.value)
    return Interaction(first, second, other, delta, reason, reason_ns)


def _reason(first: Effect, second: Effect, whole: float) -> tuple[str, float]:
    """The part of the step that makes most of an interaction; parts add up to the whole."""
    if not all(side.parts for effect in (first, second) for side in (effect.base, effect.target)):
        return "", math.nan
    names = dict.fromkeys(
        name
        for effect in (first, second)
        for side in (effect.base, effect.target)
        for name in side.parts
    )
    changes = {
        name: _change(second, name) - _change(first, name) for name in names if name != UNKNOWN
    }
    name = max(changes, key=lambda each: changes[each] * math.copysign(1, whole), default="")
    return (
        (name, changes[name])
        if whole and name and changes[name] / whole > DECISIVE
        else ("", math.nan)
    )


def _change(effect: Effect, part: str) -> float:
    return effect.target.parts.get(part, 0.0) - effect.base.parts.get(part, 0.0)
