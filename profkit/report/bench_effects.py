"""The change that each setting of a matrix makes, in words and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from profkit.analysis.costs import INPUT
from profkit.analysis.matrix import FULL_PRECISIONS, Setting
from profkit.bench.effects import Effect, Effects, Interaction
from profkit.report.document import Grid, Section
from profkit.report.words import interval_range
from profkit.text import duration, percent, plural, signed
from profkit.vocab import Phase

HEADER = ("", "where", "without", "with", "difference", "share", "95 % interval")
_PART_NAMES = {INPUT: "the wait for input", Phase.ALLREDUCE.value: "the exposed gradient exchange"}

TOLERANCE = 0.05
"""Figures that differ by less than this agree: no benchmark repeats itself much better."""


def effects(found: Effects, title: str, unit: str) -> Iterator[Section]:
    """Yield each effect, means of repeated ones, and dependencies, per sample and GPU."""
    if not found.effects:
        return
    loaders, frameworks = set(), set()
    for effect in found.effects:
        for setting in (effect.base.setting, effect.target.setting):
            frameworks.add(setting.framework)
            loaders.add(setting.loader.removeprefix(f"{setting.framework} "))
    hidden = []
    if len(loaders) == 1:
        hidden.append("loader")
    if len(frameworks) == 1:
        hidden.append("framework")
    rows = []
    for main in found.main:
        for effect in main.effects:
            rows.append(effect_row(effect, unit, hidden=hidden))
        if len(main.effects) > 1:
            what, difference = change_words(main.axis, main.levels, unit), signed(main.delta.value)
            interval = interval_range(main.delta, signed)
            count = f"mean of {len(main.effects)}"
            rows.append((what, count, "", "", difference, "", interval))
    grid = Grid(HEADER, tuple(rows), frozenset(range(2, len(HEADER))))
    notes = tuple(dependence_notes(found, unit, hidden=hidden))
    yield Section(f"{title}, per sample and {unit}", notes, grid=grid)


def dependence_notes(found: Effects, unit: str, *, hidden: Collection[str]) -> Iterator[str]:
    matters = []
    for each in found.interactions:
        if found.judged:
            is_large = each.sure
        else:
            is_large = abs(each.delta.value) > TOLERANCE * each.first.base.total.value
        if is_large:
            matters.append(each)
    for each in matters:
        yield interaction_words(each, unit, hidden=hidden)
    if found.interactions and not matters:
        limit = f"by more than {percent(TOLERANCE, 0)}"
        if found.judged:
            limit = "beyond the noise"
        yield f"none of these depends on another {limit}"
    if not found.judged:
        yield "no intervals: it is not known how well these figures repeat"


def effect_row(effect: Effect, unit: str, *, hidden: Collection[str]) -> tuple[str, ...]:
    return (
        change_words(effect.axis, effect.levels, unit),
        ", ".join(constant_settings(effect.base.setting, {effect.axis, *hidden}, unit)),
        duration(effect.base.total.value),
        duration(effect.target.total.value),
        signed(effect.delta.value),
        signed(effect.share.value, percent),
        interval_range(effect.delta, signed),
    )


def change_words(axis: str, levels: tuple[Any, Any], unit: str) -> str:
    """Name a change of one axis."""
    base, target = levels
    if axis == "precision" and base in FULL_PRECISIONS and target not in FULL_PRECISIONS:
        return "AMP"
    if axis == "loader" and "dali" in str(target).lower():
        return str(target)
    if axis == "gpus":
        return f"{plural(target, unit)} instead of {base}"
    if axis != "batch_size":
        return f"{target} instead of {base}"
    return f"batch {target} instead of {base}"


def constant_settings(setting: Setting, changing: Collection[str], unit: str) -> list[str]:
    """Return all axes except the changing ones, in words."""
    words = {
        "gpus": plural(setting.gpus, unit),
        "precision": setting.precision,
        "batch_size": f"batch {setting.batch_size}",
        "loader": setting.loader.removeprefix(f"{setting.framework} "),
        "framework": setting.framework,
    }
    return [word for name, word in words.items() if name not in changing and word]


def interaction_words(each: Interaction, unit: str, *, hidden: Collection[str]) -> str:
    """Describe, for example: AMP saves 59 ms at 1 GPU and nothing at 8, with the reason."""
    axis, other = each.first.axis, each.other_axis
    first, second = each.other_levels
    words = (
        f"{change_words(axis, each.first.levels, unit)} "
        f"{outcome_words(each.first)} {level_words(other, first, unit)} and "
        f"{outcome_words(each.second)} {level_words(other, second, unit)}"
    )
    kept = constant_settings(each.first.base.setting, {axis, other, *hidden}, unit)
    if kept:
        words += f" ({', '.join(kept)})"
    if each.reason:
        part = _PART_NAMES.get(each.reason, each.reason)
        direction = "more" if each.reason_ns > 0 else "less"
        words += f", because {duration(abs(each.reason_ns))} {direction} go into {part} there"
    return words


def outcome_words(effect: Effect) -> str:
    delta = effect.delta
    if delta.judged and not effect.sure:
        return "changes nothing beyond the noise"
    verb = "costs" if delta.value > 0 else "saves"
    return f"{verb} {duration(abs(delta.value))}"


def level_words(axis: str, level: Any, unit: str) -> str:
    if axis == "gpus":
        return f"at {plural(level, unit)}"
    if axis in {"loader", "framework"}:
        return f"with {level}"
    if axis == "precision":
        return f"in {level}"
    return f"at batch {level}"
