"""A matrix in words and tables, before it has a shape: text and Markdown render the same sections."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Estimate
from profkit.analysis.matrix import FULL_PRECISIONS, Cell, Setting, column_name, lay_out
from profkit.bench.consistency import TOLERANCE
from profkit.bench.effects import Effect, Effects, Interaction, MainEffect
from profkit.bench.read import Benched, BenchedCell, Table
from profkit.text import duration, percent, plural, significant
from profkit.vocab import Phase

MISSING = "-"
DIGITS = 4
_PART_NAMES = {INPUT: "the wait for input", Phase.ALLREDUCE.value: "the exposed gradient exchange"}


@dataclass(frozen=True)
class Section:
    """A table under a title, and lines below it; `left` counts the columns of words at its left, figures stand to their right."""

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    left: int = 0
    last_is_words: bool = False

    @property
    def right(self) -> frozenset[int]:
        """The columns of figures."""
        return frozenset(range(self.left, len(self.header) - self.last_is_words))


def sections(view: Benched) -> Iterator[Section]:
    """Ours with the published figures beside them; or what was published alone, told at length."""
    if not view.cells:
        yield from _all_published(view)
        return
    yield _own_table(view)
    yield from _effects(view.effects, "what each thing gives here", view.unit)
    if view.published:
        yield _published_in_short(view)
    if view.alike:
        yield _beside(view)
    yield from _contradictions(view)


def _all_published(view: Benched) -> Iterator[Section]:
    for table in view.published:
        yield _published(table)
        yield from _effects(table.effects, f"what it gives as published: {_of(table)}", "GPU")
    yield from _contradictions(view)


def _contradictions(view: Benched) -> Iterator[Section]:
    if view.contradictions:
        yield Section(
            "what the figures contradict",
            lines=tuple(f"{each.kind}: {each.words}" for each in view.contradictions),
        )


def _own_table(view: Benched) -> Section:
    grid = lay_out(each.cell for each in view.cells)
    by_setting = {each.cell.setting: each for each in view.cells}
    loaders = [column.loader for column in grid.columns]
    rows = tuple(
        (
            str(gpus),
            *(
                _own_cell(by_setting.get(cell.setting) if (cell := grid.at(gpus, column)) else None)
                for column in grid.columns
            ),
        )
        for gpus in grid.gpus
    )
    lines = [
        f"{MISSING} {_describe(each.cell.setting, view.unit)}: {each.why}"
        for each in view.cells
        if not each.cell.measured
    ]
    lines += [
        f"{_describe(each.cell.setting, view.unit)}: {len(each.runs)} of {plural(each.planned, 'repeat')}; {each.why}"
        for each in view.cells
        if _is_partial(each)
    ]
    lines += [f"mind: {note}" for note in view.notes]
    lines += _whole_runs(view)
    if all(each.planned == 1 for each in view.cells):
        lines.append(
            "one repeat of each: the intervals do not know how runs differ from each other"
        )
    title = f"{view.title}, {view.framework}: samples/sec of all {view.unit}s, steady steps, with 95 % intervals"
    return Section(
        title,
        (f"{view.unit}s", *(column_name(column, loaders) for column in grid.columns)),
        rows,
        tuple(lines),
    )


def _whole_runs(view: Benched) -> list[str]:
    """What a stopwatch would have made of it, as some published figures do."""
    shares = [each.whole_share for each in view.cells if each.cell.measured]
    if not shares:
        return []
    span = " to ".join(dict.fromkeys(percent(share, 0) for share in (min(shares), max(shares))))
    return [
        f"whole runs, with warm-up, epoch starts and what else is left out above, came to {span} of these figures"
    ]


def _is_partial(each: BenchedCell) -> bool:
    return each.cell.measured and len(each.runs) < each.planned


def _own_cell(each: BenchedCell | None) -> str:
    return _with_interval(each.cell.throughput) if each and each.cell.measured else MISSING


def _with_interval(figure: Estimate) -> str:
    shown = significant(figure.value, DIGITS)
    if figure.low is None or figure.high is None:
        return shown
    return f"{shown} ({significant(figure.low, 3)} to {significant(figure.high, 3)})"


def _describe(setting: Setting, unit: str) -> str:
    return f"{plural(setting.gpus, unit)}, {setting.precision}, batch {setting.batch_size}" + (
        f", {setting.loader}" if setting.loader else ""
    )


# -- published -------------------------------------------------------------------------------------


def _of(table: Table) -> str:
    return f"{table.framework} on {table.device}; {table.source}"


def _published(table: Table) -> Section:
    grid = lay_out(table.cells)
    loaders = [column.loader for column in grid.columns]
    header = ("GPUs", *(column_name(column, loaders) for column in grid.columns))
    rows = tuple(
        (str(count), *(_figure(grid.at(count, column)) for column in grid.columns))
        for count in grid.gpus
    )
    return Section(
        f"published, {table.cells[0].unit}: {_of(table)}", header, rows, tuple(_about(table.cells))
    )


def _published_in_short(view: Benched) -> Section:
    """All sources in one table, in the shape of ours."""
    cells = [cell for table in view.published for cell in table.cells]
    columns = sorted(
        {
            (cell.setting.mixed, cell.setting.precision, cell.setting.batch_size)
            for cell in cells
            if cell.measured
        }
    )
    header = (
        "of",
        "on",
        "GPUs",
        *(f"{precision.upper()}(BS={batch})" for _, precision, batch in columns),
        "source",
    )
    sources = list(dict.fromkeys(table.source for table in view.published))
    rows = []
    for table in view.published:
        by_place = {
            (cell.setting.gpus, cell.setting.precision, cell.setting.batch_size): cell
            for cell in table.cells
            if cell.measured
        }
        for gpus in sorted({gpus for gpus, _, _ in by_place}):
            figures = (
                _figure(by_place.get((gpus, precision, batch))) for _, precision, batch in columns
            )
            rows.append(
                (
                    table.framework,
                    table.device,
                    str(gpus),
                    *figures,
                    str(sources.index(table.source) + 1),
                )
            )
    units = " or ".join(dict.fromkeys(cell.unit for cell in cells))
    numbered = (f"{number}: {source}" for number, source in enumerate(sources, start=1))
    more = f"'profkit bench {view.workload} --published' tells their statistics, their effects and what they contradict themselves in"
    return Section(f"published, {units}", header, tuple(rows), (*numbered, more), left=2)


def _figure(cell: Cell | None) -> str:
    return f"{cell.throughput.value:,.10g}" if cell and cell.measured else MISSING


def _about(cells: Sequence[Cell]) -> Iterator[str]:
    """Which statistic the figures are, and what else the source says of them."""
    for statistic in dict.fromkeys(cell.statistic for cell in cells if cell.measured):
        which = ", ".join(
            dict.fromkeys(
                cell.setting.precision.upper()
                for cell in cells
                if cell.measured and cell.statistic == statistic
            )
        )
        yield f"statistic of {which}: {statistic}"
    for cell in cells:
        if cell.time_to_train_s is not None:
            reached = f" to {cell.accuracy}" if cell.accuracy else ""
            yield f"{plural(cell.setting.gpus, 'GPU')}, batch {cell.setting.batch_size}: {cell.time_to_train_s:,.10g} s{reached}"


def _beside(view: Benched) -> Section:
    """Ours against theirs, where a cell of both is the same but for the machine and the framework."""
    rows = tuple(
        (
            _describe(own.cell.setting, view.unit),
            significant(own.cell.throughput.value, DIGITS),
            _figure(cell),
            percent(own.cell.throughput.value / cell.throughput.value),
            f"{cell.framework}, {cell.device}, {cell.source}",
        )
        for own, cell in view.alike
    )
    return Section(
        "here beside what was published for the same cell",
        ("cell", "here", "published", "here of published", "published of"),
        rows,
        left=1,
        last_is_words=True,
    )


# -- effects ---------------------------------------------------------------------------------------


def _effects(found: Effects, title: str, unit: str) -> Iterator[Section]:
    """Each effect in time per sample per GPU, the mean of those that repeat, and what they depend on."""
    if not found.effects:
        return
    loaders = {
        side.setting.loader for effect in found.effects for side in (effect.base, effect.target)
    }
    hidden = ["loader"] if len(loaders) == 1 else []
    rows = []
    for main in found.main:
        rows += [_effect_row(effect, unit, hidden=hidden) for effect in main.effects]
        rows += [_mean_row(main, unit)] * (len(main.effects) > 1)
    header = ("", "where", "without", "with", "difference", "share", "95 % interval")
    lines = [
        _interaction(each, unit, hidden=hidden)
        for each in found.interactions
        if _is_worth_telling(each, judged=found.judged)
    ]
    if found.interactions and not lines:
        lines = [
            "none of these depends on another beyond the noise"
            if found.judged
            else "none of these depends on another by more than a twentieth"
        ]
    if not found.judged:
        lines.append("no intervals: nothing says how far these figures repeat")
    yield Section(f"{title}, per sample and {unit}", header, tuple(rows), tuple(lines), left=2)


def _effect_row(effect: Effect, unit: str, *, hidden: Collection[str]) -> tuple[str, ...]:
    delta = effect.delta
    return (
        _what(effect.axis, effect.levels, unit),
        ", ".join(_what_stays(effect.base.setting, {effect.axis, *hidden}, unit)),
        duration(effect.base.total.value),
        duration(effect.target.total.value),
        _signed(delta.value),
        _signed_percent(effect.share.value),
        _span(delta),
    )


def _mean_row(main: MainEffect, unit: str) -> tuple[str, ...]:
    return (
        _what(main.axis, main.levels, unit),
        f"mean of {len(main.effects)}",
        "",
        "",
        _signed(main.delta.value),
        "",
        _span(main.delta),
    )


def _span(delta: Estimate) -> str:
    return (
        MISSING
        if delta.low is None or delta.high is None
        else f"{_signed(delta.low)} to {_signed(delta.high)}"
    )


def _signed(ns: float) -> str:
    return ("+" if ns > 0 else "") + duration(ns)


def _signed_percent(share: float) -> str:
    return ("+" if share > 0 else "") + percent(share)


def _what(axis: str, levels: tuple[Any, Any], unit: str) -> str:
    """What changes, as people call it."""
    base, target = levels
    if axis == "precision":
        return (
            "AMP"
            if base in FULL_PRECISIONS and target not in FULL_PRECISIONS
            else f"{target} instead of {base}"
        )
    if axis == "loader":
        return "DALI" if "dali" in str(target).lower() else f"{target} instead of {base}"
    if axis == "gpus":
        return f"{plural(target, unit)} instead of {base}"
    return f"batch {target} instead of {base}"


def _what_stays(setting: Setting, changing: Collection[str], unit: str) -> list[str]:
    """All axes but those that change, in words."""
    words = {
        "gpus": plural(setting.gpus, unit),
        "precision": setting.precision,
        "batch_size": f"batch {setting.batch_size}",
        "loader": setting.loader,
    }
    return [word for name, word in words.items() if name not in changing and word]


def _is_worth_telling(each: Interaction, *, judged: bool) -> bool:
    return each.sure if judged else abs(each.delta.value) > TOLERANCE * each.first.base.total.value


def _interaction(each: Interaction, unit: str, *, hidden: Collection[str]) -> str:
    """As in: AMP saves 59 ms at 1 GPU and nothing at 8, because the step waits for input there."""
    what = _what(each.first.axis, each.first.levels, unit)
    first, second = (_level(each.other_axis, level, unit) for level in each.other_levels)
    kept = _what_stays(each.first.base.setting, {each.first.axis, each.other_axis, *hidden}, unit)
    where = f" ({', '.join(kept)})" if kept else ""
    return f"{what} {_does(each.first)} {first} and {_does(each.second)} {second}{where}{_because(each)}"


def _does(effect: Effect) -> str:
    delta = effect.delta
    if delta.judged and not effect.sure:
        return "changes nothing beyond the noise"
    return f"{'costs' if delta.value > 0 else 'saves'} {duration(abs(delta.value))}"


def _level(axis: str, level: Any, unit: str) -> str:
    if axis == "gpus":
        return f"at {plural(level, unit)}"
    return {
        "batch_size": f"at batch {level}",
        "loader": f"with {level}",
        "precision": f"in {level}",
    }[axis]


def _because(each: Interaction) -> str:
    if not each.reason:
        return ""
    name = _PART_NAMES.get(each.reason, each.reason)
    direction = "more" if each.reason_ns > 0 else "less"
    return f", because {duration(abs(each.reason_ns))} {direction} go into {name} there"
