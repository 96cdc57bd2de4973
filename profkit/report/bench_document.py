"""A matrix of settings: measured cells, published ones, and what a setting changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from profkit.analysis.matrix import Cell, Setting, column_name, lay_out
from profkit.bench.read import Benched, rows
from profkit.bench.read import Table as PublishedTable
from profkit.report.bench_effects import EFFECTS, INTERACTIONS, effects, setting_data
from profkit.show.document import Column, Document, Grid, Section, Table, Tone, data_columns
from profkit.show.figures import NO_FIGURE, interval_range, whole_percent
from profkit.text import percent, plural, significant

DIGITS = 4


def bench(view: Benched) -> Document:
    """Return the document of a matrix; times for programs are ns per sample and GPU."""
    effects_of, interactions = view.effects.effects, view.effects.interactions
    return Document(
        title=view.title,
        subtitle="",
        verdict="",
        tone=Tone.PLAIN,
        summary="",
        sections=tuple(sections(view)),
        data={
            "workload": view.workload,
            "framework": ", ".join(view.frameworks) or None,
            "cells": rows(view),
            "effects": Table(EFFECTS, effects_of),
            "interactions": Table(INTERACTIONS, interactions),
            "published": Table(_PUBLISHED, view.published),
            "notes": view.notes,
        },
    )


_PUBLISHED = (
    *data_columns("framework", "device", "source"),
    Column("cells", None, lambda found: list(map(_cell, found.cells))),
    Column("effects", None, lambda found: Table(EFFECTS, found.effects.effects)),
)


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        **setting_data(cell.setting),
        "throughput": cell.throughput.value,
        "unit": cell.unit,
        "statistic": cell.statistic,
        "time_to_train_s": cell.time_to_train_s,
    }


def sections(view: Benched) -> Iterator[Section]:
    """Yield the measured cells with the published ones in short, or these alone in full."""
    if view.cells:
        yield measured(view)
        yield from effects(view.effects, "what each setting changes here", view.unit)
        if view.published:
            yield published_in_short(view)
        if view.alike:
            yield compared(view)
    else:
        for table in view.published:
            yield published(table)
            title = f"what each setting changes as published: {_origin(table)}"
            yield from effects(table.effects, title, "GPU")


# -- measured --------------------------------------------------------------------------------------


def measured(view: Benched) -> Section:
    grid = matrix_grid([each.cell for each in view.cells], f"{view.unit}s", measured_figure)
    title = (
        f"{view.title}, {' and '.join(view.frameworks)}: samples/sec of all {view.unit}s, "
        "steady steps, with 95 % intervals"
    )
    return Section(title, tuple(measured_notes(view)), table=grid)


def matrix_grid(cells: Sequence[Cell], corner: str, show: Callable[[Cell | None], str]) -> Grid:
    """Return the cells with a row per number of GPUs and a column per other setting."""
    layout = lay_out(cells)
    found = []
    for gpus in layout.gpus:
        figures = [show(layout.at(gpus, column)) for column in layout.columns]
        found.append((str(gpus), *figures))
    names = [column_name(column, layout.columns) for column in layout.columns]
    header = (corner, *names)
    return Grid(header, tuple(found), frozenset(range(len(header))), whole=True)


def measured_figure(cell: Cell | None) -> str:
    if cell is None or not cell.measured:
        return NO_FIGURE
    shown = significant(cell.throughput.value, DIGITS)
    if not cell.throughput.judged:
        return shown
    return f"{shown} ({interval_range(cell.throughput, significant)})"


def measured_notes(view: Benched) -> Iterator[str]:
    for each in view.cells:
        if not each.cell.measured:
            yield f"{NO_FIGURE} {setting_words(each.cell.setting, view)}: {each.why}"
    for each in view.cells:
        if each.cell.measured and len(each.runs) < each.planned:
            done = f"{len(each.runs)} of {plural(each.planned, 'repeat')}"
            yield f"{setting_words(each.cell.setting, view)}: {done}; {each.why}"
    for note in view.notes:
        yield f"note: {note}"
    shares = [each.whole_share for each in view.cells if each.cell.measured]
    if shares:
        ends = dict.fromkeys((whole_percent(min(shares)), whole_percent(max(shares))))
        yield (
            "whole runs, including warm-up, epoch starts and everything else that is excluded "
            f"above, reached {' to '.join(ends)} of these figures"
        )
    if all(each.planned == 1 for each in view.cells):
        yield "one repeat of each: the intervals do not include how runs differ from each other"


def setting_words(setting: Setting, view: Benched) -> str:
    words = [plural(setting.gpus, view.unit), setting.precision, f"batch {setting.batch_size}"]
    if setting.loader:
        words.append(setting.loader)
    if len(view.frameworks) > 1:
        words.insert(0, setting.framework)
    return ", ".join(words)


# -- published -------------------------------------------------------------------------------------


def _origin(table: PublishedTable) -> str:
    return f"{table.framework} on {table.device}; {table.source}"


def published(table: PublishedTable) -> Section:
    title = f"published, {table.cells[0].unit}: {_origin(table)}"
    notes = tuple(published_notes(table.cells))
    return Section(title, notes, table=matrix_grid(table.cells, "GPUs", published_figure))


def published_figure(cell: Cell | None) -> str:
    if cell is None or not cell.measured:
        return NO_FIGURE
    return f"{cell.throughput.value:,.10g}"


def published_notes(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield which statistic the figures are, and the times to train that the source states."""
    precisions: dict[str, list[str]] = {}
    for cell in cells:
        if cell.measured:
            named = precisions.setdefault(cell.statistic, [])
            named.append(cell.setting.precision.upper())
    for statistic, names in precisions.items():
        yield f"statistic of {', '.join(dict.fromkeys(names))}: {statistic}"
    for cell in cells:
        if cell.time_to_train_s is not None:
            where = f"{plural(cell.setting.gpus, 'GPU')}, batch {cell.setting.batch_size}"
            words = f"{where}: {cell.time_to_train_s:,.10g} s"
            if cell.accuracy:
                words += f" to {cell.accuracy}"
            yield words


def published_in_short(view: Benched) -> Section:
    """Return all sources in one table, in the shape of the measured one."""
    columns, units = set(), {}
    sources: dict[str, str] = {}
    for table in view.published:
        sources.setdefault(table.source, str(len(sources) + 1))
        for cell in table.cells:
            units[cell.unit] = True
            if cell.measured:
                columns.add(_column(cell))
    ordered = sorted(columns)
    rows = []
    for table in view.published:
        by_gpus: dict[int, dict[Any, Cell]] = {}
        for cell in table.cells:
            if cell.measured:
                by_gpus.setdefault(cell.setting.gpus, {})[_column(cell)] = cell
        for gpus, cells in sorted(by_gpus.items()):
            figures = [published_figure(cells.get(column)) for column in ordered]
            number = sources[table.source]
            rows.append((table.framework, table.device, str(gpus), *figures, number))
    notes = [f"{number}: {source}" for source, number in sources.items()]
    notes.append(
        f"'profkit bench {view.workload} --published' shows their statistics and their effects"
    )
    named = [f"{precision.upper()}(BS={batch})" for _, precision, batch in ordered]
    header = ("of", "on", "GPUs", *named, "source")
    grid = Grid(header, tuple(rows), frozenset(range(2, len(header))))
    return Section(f"published, {' or '.join(units)}", tuple(notes), table=grid)


def _column(cell: Cell) -> tuple[bool, str, int]:
    """Return what the column of a cell stands for, in the order of columns."""
    return cell.setting.mixed, cell.setting.precision, cell.setting.batch_size


def compared(view: Benched) -> Section:
    """Return the cells that were measured and published, with the ratio of both."""
    rows = []
    for own, cell in view.alike:
        here = own.cell.throughput.value
        row = (
            setting_words(own.cell.setting, view),
            significant(here, DIGITS),
            published_figure(cell),
            percent(here / cell.throughput.value),
            f"{cell.framework}, {cell.device}, {cell.source}",
        )
        rows.append(row)
    header = ("cell", "here", "published", "here of published", "published of")
    grid = Grid(header, tuple(rows), frozenset({1, 2, 3}))
    return Section("here, compared with what was published for the same cell", table=grid)
