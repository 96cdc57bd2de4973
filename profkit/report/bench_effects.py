"""The change that each setting of a matrix makes, in words and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from profkit.analysis.matrix import FULL_PRECISIONS, Setting
from profkit.bench.effects import Effect, Effects, Interaction
from profkit.frame.costs import DATA
from profkit.frame.estimate import Estimate
from profkit.show.document import Column, Section, Table, data_columns
from profkit.show.figures import NS, SIGNED_NS, Unit
from profkit.text import duration, percent, plural, signed
from profkit.vocab import Phase

_PART_NAMES = {DATA: "the wait for data", Phase.ALLREDUCE.value: "the exposed gradient exchange"}

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
    shown = []
    for main in found.main:
        for effect in main.effects:
            shown.append(_Row.of(effect, unit, hidden))
        if len(main.effects) > 1:
            what = change_words(main.axis, main.levels, unit)
            shown.append(_Row(what, f"mean of {len(main.effects)}", main.delta))
    notes = tuple(dependence_notes(found, unit, hidden=hidden))
    yield Section(f"{title}, per sample and {unit}", notes, table=Table(_SHOWN, shown, whole=True))


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


@dataclass(frozen=True)
class _Row:
    """An effect for people; a mean of several has no sides."""

    what: str
    where: str
    delta: Estimate
    base: Estimate | str = ""
    target: Estimate | str = ""
    share: Estimate | str = ""

    @classmethod
    def of(cls, effect: Effect, unit: str, hidden: Collection[str]) -> _Row:
        where = constant_settings(effect.base.setting, {effect.axis, *hidden}, unit)
        what = change_words(effect.axis, effect.levels, unit)
        sides = effect.base.total, effect.target.total
        return cls(what, ", ".join(where), effect.delta, *sides, effect.share)


_SHOWN = (
    Column("", "", lambda row: row.what),
    Column("", "where", lambda row: row.where),
    Column("", "without", lambda row: row.base, NS),
    Column("", "with", lambda row: row.target, NS),
    Column("", "share", lambda row: row.share, Unit(partial(signed, show=percent))),
    Column("", "difference", lambda row: row.delta, SIGNED_NS, interval=True),
)

EFFECTS = (
    *data_columns("axis", difference_ns="delta", difference_share="share"),
    Column("from", None, lambda effect: effect.levels[0]),
    Column("to", None, lambda effect: effect.levels[1]),
    Column("at", None, lambda effect: setting_data(effect.base.setting)),
    Column("base_ns", None, lambda effect: effect.base.total),
    Column("target_ns", None, lambda effect: effect.target.total),
    Column("beyond_the_noise", None, lambda effect: effect.sure if effect.delta.judged else None),
)

INTERACTIONS = (
    *data_columns("reason", "reason_ns", depends_on="other_axis", at="other_levels"),
    *data_columns(interaction_ns="delta"),
    Column("axis", None, lambda each: each.first.axis),
    Column("first_difference_ns", None, lambda each: each.first.delta),
    Column("second_difference_ns", None, lambda each: each.second.delta),
    Column("beyond_the_noise", None, lambda each: each.sure if each.delta.judged else None),
)


def setting_data(setting: Setting) -> dict[str, Any]:
    return {
        "gpus": setting.gpus,
        "precision": setting.precision,
        "batch_size": setting.batch_size,
        "loader": setting.loader or None,
        "framework": setting.framework or None,
    }


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
