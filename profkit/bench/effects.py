"""The effects of AMP, DALI, GPUs, batch and framework, and their interactions.

An effect is the difference of two cells that differ in one thing alone, in time per sample per
GPU. An interaction is the difference of two such effects. If the parts of the steps were measured,
the interaction has the same parts, and the one that makes most of it is its reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from profkit.analysis.matrix import Setting
from profkit.analysis.run_noise import difference, keep_possible
from profkit.bench.timings import Timing, combine, groups_of
from profkit.frame.estimate import NEGLIGIBLE, Estimate, scale
from profkit.frame.phases import UNKNOWN

AXES: Final = ("precision", "loader", "gpus", "batch_size", "framework")
"""The settings that are varied, in the order in which their effects are reported."""

_FRAMEWORK: Final = "base.setting.framework"

REASON_SHARE: Final = 0.5
"""A part is the reason of an interaction if it makes more than this share of it."""


@dataclass(frozen=True)
class Effect:
    """The difference that one change makes, in ns per sample per GPU, all else being equal."""

    axis: str
    base: Timing
    target: Timing

    @property
    def delta(self) -> Estimate:
        base = self.base.total
        return keep_possible(difference(base, self.target.total), base.value)

    @property
    def share(self) -> Estimate:
        """The difference as a share of the base."""
        return scale(self.delta, 1 / self.base.total.value)

    @property
    def sure(self) -> bool:
        """True if the difference is beyond the noise and not negligible."""
        return excludes_zero(self.delta) and abs(self.share.value) >= NEGLIGIBLE

    @property
    def levels(self) -> tuple[Any, Any]:
        """The axis on both sides."""
        return getattr(self.base.setting, self.axis), getattr(self.target.setting, self.axis)


@dataclass(frozen=True)
class MainEffect:
    """The mean of one change over all settings in which it was measured."""

    axis: str
    levels: tuple[Any, Any]
    delta: Estimate
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Interaction:
    """One effect at two levels of another axis; `delta` is the second effect minus the first."""

    first: Effect
    second: Effect
    other_axis: str
    delta: Estimate
    reason: str = ""
    """The part that makes most of the difference; empty if none does, or parts are not known."""

    reason_ns: float = math.nan

    @property
    def sure(self) -> bool:
        """True if the difference is beyond the noise and not negligible."""
        negligible_ns = NEGLIGIBLE * self.first.base.total.value
        return excludes_zero(self.delta) and abs(self.delta.value) >= negligible_ns

    @property
    def other_levels(self) -> tuple[Any, Any]:
        """The other axis in both effects."""
        first = getattr(self.first.base.setting, self.other_axis)
        return first, getattr(self.second.base.setting, self.other_axis)


@dataclass(frozen=True)
class Effects:
    """The effects that the cells of a matrix allow."""

    effects: tuple[Effect, ...]
    main: tuple[MainEffect, ...]
    interactions: tuple[Interaction, ...]

    @property
    def judged(self) -> bool:
        """True if all effects have intervals."""
        return all(effect.delta.judged for effect in self.effects)


def excludes_zero(delta: Estimate) -> bool:
    """Return true if a difference has an interval, and zero is outside of it."""
    return delta.low is not None and delta.high is not None and not delta.low <= 0 <= delta.high


def find_effects(timings: Iterable[Timing]) -> Effects:
    """Return every effect that the cells allow, from the first level of each axis on.

    Effects of other axes than the framework are effects within one framework.
    """
    by_setting = {timing.setting: timing for timing in timings}
    by_framework = list(groups_of(sorted(by_setting), attrgetter("framework")))
    effects: list[Effect] = []
    groups: dict[tuple[str, tuple[Any, Any]], list[Effect]] = {}
    for axis in AXES:
        for settings in [sorted(by_setting)] if axis == "framework" else by_framework:
            first, *others = _levels(axis, settings) or [None]
            for level, setting in itertools.product(others, settings):
                target = by_setting.get(_at_level(setting, axis, level))
                if getattr(setting, axis) == first and target is not None:
                    effects.append(Effect(axis, by_setting[setting], target))
                    groups.setdefault((axis, effects[-1].levels), []).append(effects[-1])
    main = []
    for (axis, levels), own in groups.items():
        mean = combine([(1 / len(own), effect.delta) for effect in own])
        main.append(MainEffect(axis, levels, mean, tuple(own)))
    return Effects(tuple(effects), tuple(main), tuple(_interactions(effects)))


def _levels(axis: str, settings: Iterable[Setting]) -> list[Any]:
    """Return the levels of an axis; full precision, own loaders and torch come first."""
    found = set(map(attrgetter(axis), settings))
    if axis == "precision":
        return sorted(found, key=lambda level: (Setting(1, level, 1).mixed, level))
    if axis == "loader":
        return sorted(found, key=lambda level: ("dali" in level.lower(), level))
    return sorted(found, reverse=axis == "framework")


def _at_level(setting: Setting, axis: str, level: Any) -> Setting:
    """Return the setting at another level of an axis; a framework has its own loader."""
    if axis == "framework":
        loader = setting.loader.replace(setting.framework, level)
        return replace(setting, framework=level, loader=loader)
    return replace(setting, **{axis: level})


def _interactions(effects: Sequence[Effect]) -> Iterator[Interaction]:
    """Yield how the effect of an axis depends on the level of another, for each pair of axes."""
    for axis, other in itertools.combinations(AXES, 2):
        alike = attrgetter("axis") if other == "framework" else attrgetter("axis", _FRAMEWORK)
        for own in groups_of(effects, alike):
            levels = _levels(other, map(attrgetter("base.setting"), own))
            for first, second in itertools.product(own, own):
                at_first = getattr(first.base.setting, other)
                at_second = getattr(second.base.setting, other)
                if first.axis != axis or at_first != levels[0] or at_second == at_first:
                    continue
                unchanged = _at_level(second.base.setting, other, at_first) == first.base.setting
                if unchanged and first.levels == second.levels:
                    delta = combine([(1.0, second.delta), (-1.0, first.delta)])
                    reason, reason_ns = _reason(first, second, delta.value)
                    yield Interaction(first, second, other, delta, reason, reason_ns)


def _reason(first: Effect, second: Effect, whole: float) -> tuple[str, float]:
    """Return the part of the step that makes most of an interaction, and its time."""
    sides = second.target.parts, second.base.parts, first.target.parts, first.base.parts
    if not all(sides) or not whole:
        return "", math.nan
    changes = {}
    for name in itertools.chain(*sides):
        if name != UNKNOWN:
            after, before, first_after, first_before = (side.get(name, 0.0) for side in sides)
            changes[name] = (after - before) - (first_after - first_before)
    sign = math.copysign(1, whole)
    largest = max(changes, key=lambda name: sign * changes[name], default="")
    if largest and changes[largest] / whole > REASON_SHARE:
        return largest, changes[largest]
    return "", math.nan
