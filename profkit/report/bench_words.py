"""A matrix in words and tables, independent of its format: measured cells, and published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profkit.analysis.matrix import Cell, Setting, column_name, lay_out
from profkit.bench.read import Benched, Table
from profkit.report.bench_effects import effects
from profkit.report.document import Grid, Section
from profkit.report.words import NO_FIGURE, interval_range, whole_percent
from profkit.text import percent, plural, significant

DIGITS = 4


def sections(view: Benched) -> Iterator[Section]:
    """Yield the measured cells with the published figures; or the published ones alone, in full."""
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
    if view.contradictions:
        lines = []
        for each in view.contradictions:
            lines.append(f"{each.kind}: {each.words}")
        yield Section("what the figures contradict", tuple(lines))


def _grid(header: Sequence[str], rows: Sequence[tuple[str, ...]], left: int = 0) -> Grid:
    """Return a table whose columns after the first `left` are figures."""
    return Grid(tuple(header), tuple(rows), frozenset(range(left, len(header))))


# -- measured --------------------------------------------------------------------------------------


def measured(view: Benched) -> Section:
    grid = _matrix([each.cell for each in view.cells], f"{view.unit}s", _measured_figure)
    title = (
        f"{view.title}, {view.framework}: samples/sec of all {view.unit}s, steady steps, "
        "with 95 % intervals"
    )
    return Section(title, tuple(_measured_notes(view)), grid=grid)


def _matrix(cells: Sequence[Cell], corner: str, show: Callable[[Cell | None], str]) -> Grid:
    """Return the cells with a row per number of GPUs and a column per other setting."""
    layout = lay_out(cells)
    loaders = [column.loader for column in layout.columns]
    rows = []
    for gpus in layout.gpus:
        figures = [show(layout.at(gpus, column)) for column in layout.columns]
        rows.append((str(gpus), *figures))
    names = [column_name(column, loaders) for column in layout.columns]
    return _grid((corner, *names), rows)


def _measured_figure(cell: Cell | None) -> str:
    if cell is None or not cell.measured:
        return NO_FIGURE
    shown = significant(cell.throughput.value, DIGITS)
    if not cell.throughput.judged:
        return shown
    return f"{shown} ({interval_range(cell.throughput, significant)})"


def _measured_notes(view: Benched) -> Iterator[str]:
    for each in view.cells:
        if not each.cell.measured:
            yield f"{NO_FIGURE} {_describe(each.cell.setting, view.unit)}: {each.why}"
    for each in view.cells:
        if each.cell.measured and len(each.runs) < each.planned:
            done = f"{len(each.runs)} of {plural(each.planned, 'repeat')}"
            yield f"{_describe(each.cell.setting, view.unit)}: {done}; {each.why}"
    for note in view.notes:
        yield f"mind: {note}"
    shares = [each.whole_share for each in view.cells if each.cell.measured]
    if shares:
        ends = dict.fromkeys((whole_percent(min(shares)), whole_percent(max(shares))))
        yield (
            "whole runs, including warm-up, epoch starts and everything else that is excluded "
            f"above, reached {' to '.join(ends)} of these figures"
        )
    if all(each.planned == 1 for each in view.cells):
        yield "one repeat of each: the intervals do not include how runs differ from each other"


def _describe(setting: Setting, unit: str) -> str:
    words = [plural(setting.gpus, unit), setting.precision, f"batch {setting.batch_size}"]
    if setting.loader:
        words.append(setting.loader)
    return ", ".join(words)


# -- published -------------------------------------------------------------------------------------


def _origin(table: Table) -> str:
    return f"{table.framework} on {table.device}; {table.source}"


def published(table: Table) -> Section:
    title = f"published, {table.cells[0].unit}: {_origin(table)}"
    notes = tuple(_published_notes(table.cells))
    return Section(title, notes, grid=_matrix(table.cells, "GPUs", _figure))


def _figure(cell: Cell | None) -> str:
    if cell is None or not cell.measured:
        return NO_FIGURE
    return f"{cell.throughput.value:,.10g}"


def _published_notes(cells: Sequence[Cell]) -> Iterator[str]:
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
    columns = set()
    units = {}
    for table in view.published:
        for cell in table.cells:
            units[cell.unit] = True
            if cell.measured:
                columns.add((cell.setting.mixed, *_column(cell)))
    ordered = [(precision, batch) for _, precision, batch in sorted(columns)]
    sources = list(dict.fromkeys(table.source for table in view.published))
    rows = []
    for table in view.published:
        measured = [cell for cell in table.cells if cell.measured]
        by_place = {(cell.setting.gpus, *_column(cell)): cell for cell in measured}
        for gpus in sorted({cell.setting.gpus for cell in measured}):
            figures = [_figure(by_place.get((gpus, *column))) for column in ordered]
            number = str(sources.index(table.source) + 1)
            rows.append((table.framework, table.device, str(gpus), *figures, number))
    notes = [f"{number}: {source}" for number, source in enumerate(sources, start=1)]
    notes.append(
        f"'profkit bench {view.workload} --published' shows their statistics, "
        "their effects and their contradictions"
    )
    named = [f"{precision.upper()}(BS={batch})" for precision, batch in ordered]
    header = ("of", "on", "GPUs", *named, "source")
    return Section(f"published, {' or '.join(units)}", tuple(notes), grid=_grid(header, rows, 2))


def _column(cell: Cell) -> tuple[str, int]:
    return cell.setting.precision, cell.setting.batch_size


def compared(view: Benched) -> Section:
    """Return the cells that were measured and published, with the ratio of both."""
    rows = []
    for own, cell in view.alike:
        here = own.cell.throughput.value
        row = (
            _describe(own.cell.setting, view.unit),
            significant(here, DIGITS),
            _figure(cell),
            percent(here / cell.throughput.value),
            f"{cell.framework}, {cell.device}, {cell.source}",
        )
        rows.append(row)
    header = ("cell", "here", "published", "here of published", "published of")
    grid = Grid(header, tuple(rows), frozenset({1, 2, 3}))
    return Section("here, compared with what was published for the same cell", grid=grid)
