"""What each setting of a matrix changes, in words and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from profkit.analysis.costs import INPUT
from profkit.analysis.matrix import FULL_PRECISIONS, Setting
from profkit.bench.consistency import TOLERANCE
from profkit.bench.effects import Effect, Effects, Interaction, MainEffect
from profkit.report.document import Grid, Section
from profkit.report.words import interval_range
from profkit.text import duration, percent, plural, signed
from profkit.vocab import Phase

HEADER = ("", "where", "without", "with", "difference", "share", "95 % interval")
_PART_NAMES = {INPUT: "the wait for input", Phase.ALLREDUCE.value: "the exposed gradient exchange"}


def effects(found: Effects, title: str, unit: str) -> Iterator[Section]:
    """Yield each effect in time per sample and GPU, means of repeated ones, and dependencies."""
    if not found.effects:
        return
    loaders = set()
    for effect in found.effects:
        loaders |= {effect.base.setting.loader, effect.target.setting.loader}
    hidden = ["loader"] if len(loaders) == 1 else []
    rows = []
    for main in found.main:
        for effect in main.effects:
            rows.append(effect_row(effect, unit, hidden=hidden))
        if len(main.effects) > 1:
            rows.append(mean_row(main, unit))
    grid = Grid(HEADER, tuple(rows), frozenset(range(2, len(HEADER))))
    notes = tuple(_notes(found, unit, hidden=hidden))
    yield Section(f"{title}, per sample and {unit}", notes, grid=grid)


def _notes(found: Effects, unit: str, *, hidden: Collection[str]) -> Iterator[str]:
    matters = []
    for each in found.interactions:
        if found.judged:
            is_large = each.sure
        else:
            is_large = abs(each.delta.value) > TOLERANCE * each.first.base.total.value
        if is_large:
            matters.append(each)
    for each in matters:
        yield _interaction(each, unit, hidden=hidden)
    if found.interactions and not matters:
        limit = f"by more than {percent(TOLERANCE, 0)}"
        if found.judged:
            limit = "beyond the noise"
        yield f"none of these depends on another {limit}"
    if not found.judged:
        yield "no intervals: it is not known how well these figures repeat"


def effect_row(effect: Effect, unit: str, *, hidden: Collection[str]) -> tuple[str, ...]:
    return (
        _change(effect.axis, effect.levels, unit),
        ", ".join(_constant(effect.base.setting, {effect.axis, *hidden}, unit)),
        duration(effect.base.total.value),
        duration(effect.target.total.value),
        signed(effect.delta.value),
        signed(effect.share.value, percent),
        interval_range(effect.delta, signed),
    )


def mean_row(main: MainEffect, unit: str) -> tuple[str, ...]:
    what, where = _change(main.axis, main.levels, unit), f"mean of {len(main.effects)}"
    return what, where, "", "", signed(main.delta.value), "", interval_range(main.delta, signed)


def _change(axis: str, levels: tuple[Any, Any], unit: str) -> str:
    """Name a change of one axis."""
    base, target = levels
    if axis == "precision" and base in FULL_PRECISIONS and target not in FULL_PRECISIONS:
        return "AMP"
    if axis == "loader" and "dali" in str(target).lower():
        return "DALI"
    if axis == "gpus":
        return f"{plural(target, unit)} instead of {base}"
    if axis in {"precision", "loader"}:
        return f"{target} instead of {base}"
    return f"batch {target} instead of {base}"


def _constant(setting: Setting, changing: Collection[str], unit: str) -> list[str]:
    """Return all axes except the changing ones, in words."""
    words = {
        "gpus": plural(setting.gpus, unit),
        "precision": setting.precision,
        "batch_size": f"batch {setting.batch_size}",
        "loader": setting.loader,
    }
    return [word for name, word in words.items() if name not in changing and word]


def _interaction(each: Interaction, unit: str, *, hidden: Collection[str]) -> str:
    """Describe, for example: AMP saves 59 ms at 1 GPU and nothing at 8, with the reason."""
    axis, other = each.first.axis, each.other_axis
    first, second = each.other_levels
    words = (
        f"{_change(axis, each.first.levels, unit)} "
        f"{_outcome(each.first)} {_level(other, first, unit)} and "
        f"{_outcome(each.second)} {_level(other, second, unit)}"
    )
    kept = _constant(each.first.base.setting, {axis, other, *hidden}, unit)
    if kept:
        words += f" ({', '.join(kept)})"
    if each.reason:
        part = _PART_NAMES.get(each.reason, each.reason)
        direction = "more" if each.reason_ns > 0 else "less"
        words += f", because {duration(abs(each.reason_ns))} {direction} go into {part} there"
    return words


def _outcome(effect: Effect) -> str:
    delta = effect.delta
    if delta.judged and not effect.sure:
        return "changes nothing beyond the noise"
    verb = "costs" if delta.value > 0 else "saves"
    return f"{verb} {duration(abs(delta.value))}"


def _level(axis: str, level: Any, unit: str) -> str:
    if axis == "gpus":
        return f"at {plural(level, unit)}"
    if axis == "loader":
        return f"with {level}"
    if axis == "precision":
        return f"in {level}"
    return f"at batch {level}"
