"""Overview: one run's throughput, where a step goes, and how reliable the figures are."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from profkit.analysis.views.run import RunView, build_run_view
from profkit.report.run_document import parts, quality, run
from profkit.report.words import role_of
from profkit.show import json as show_json
from profkit.show.document import Document, Table, Tone
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.themes import Palette
from profkit.tui.widgets import run_draw
from profkit.tui.widgets.columns import GAP, Column, least_width
from profkit.tui.widgets.document import columns_of, lines_of
from profkit.tui.widgets.draw import bar, folded, line
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.step_strip import change_marks, strip
from profkit.tui.widgets.table import VirtualTable

BAR_WIDTH: Final = 16
LEAST_BAR_WIDTH: Final = 4
"""Shorter bars show nothing."""


class OverviewScreen(RunScreen[RunView]):
    """The headline, the parts of a step, the losses and the data quality of a run."""

    NAME = "overview"
    KEY = "1"
    TITLE = "Overview"
    ANSWERS = True
    KEEPS_UP = True

    DEFAULT_CSS = """
    OverviewScreen #sides { layout: vertical; height: auto; }
    OverviewScreen.-wide #sides { layout: horizontal; }
    OverviewScreen .side { height: auto; width: 1fr; }
    OverviewScreen .title { margin-top: 1; }
    OverviewScreen VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; }
    OverviewScreen #parts { scrollbar-size: 0 0; }
    OverviewScreen #right { padding-left: 0; }
    OverviewScreen.-wide #right { padding-left: 2; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012  # Textual's type

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "code", "lines of code"),
        Binding("d", "app.show_runs('compare')", "compare with another run"),
    ]

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Lines(id="headline")
            yield Lines(id="bar")
            with Vertical(id="sides"):
                with Vertical(classes="side"):
                    yield Static("Time not spent on training", classes="title")
                    yield Lines(id="losses")
                    yield Static("Where a step goes", classes="title")
                    yield VirtualTable(id="parts", empty="no phases were recorded")
                with Vertical(classes="side", id="right"):
                    yield Static("Step times", classes="title")
                    yield Lines(id="strip")
                    yield Static("Confidence and data quality", classes="title")
                    yield Lines(id="quality")

    build = staticmethod(lambda source: build_run_view(source.trace, source.ceilings))
    to_json = staticmethod(lambda view: show_json.document(run(view)))

    def show(self, view: RunView) -> None:
        palette, plain, height = self.palette, self.plain, self.app.size.height
        self.show_titles()
        document = run(view)
        found = {section.key: section for section in document.sections}
        drawings = {
            "headline": lambda _: _head_lines(document, palette),
            "bar": lambda width: run_draw.bar_of_step(view, palette, width, plain=plain),
            "losses": lambda _: lines_of(found["losses"], palette),
            "strip": lambda width: [
                *change_marks(view.points, view.overview.changes, palette, width, plain=plain),
                *strip(view.points, palette, width, height, plain=plain),
            ],
            "quality": lambda _: lines_of(quality(view), palette),
        }
        for name, draw in drawings.items():
            self.query_one(f"#{name}", Lines).show(draw)
        table = parts(view)
        columns = columns_of(table)
        shares = next(column.values for column in columns if column.title == "share")
        keys = _keys(table, view)
        roles = [role_of(key.parent) for key in keys]
        room = self.size.width - least_width(columns, range(len(keys))) - 2 * GAP
        if room >= LEAST_BAR_WIDTH:
            draw_bar = functools.partial(bar, width=min(BAR_WIDTH, room), plain=plain)
            columns.append(Column("", shares, draw_bar, searched=False, roles=roles))
        self.show_table("parts", columns, keys)

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        """Open the screen with details of the part under the cursor."""
        part = event.table.key.parent
        screen = run_draw.SCREEN_OF.get(part, "timeline")
        self.go(screen, Place(phase=run_draw.phase_of(part)))

    def action_code(self) -> None:
        """Open the lines of code of the part under the cursor."""
        table = self.query_one("#parts", VirtualTable)
        part = table.key.parent if table.row is not None else ""
        self.go("code", Place(phase=part or None))


class PartKey(NamedTuple):
    """Identifies a row of the table of parts."""

    label: str
    parent: str
    """The part that the row is about or is inside of; empty for time that is hidden."""


def _keys(table: Table, view: RunView) -> list[PartKey]:
    names, parent, keys = {part.name for part in view.parts}, "", []
    for depth, part in table.visible():
        if not depth:
            parent = part.name if part.name in names else ""
        keys.append(PartKey(part.name, parent))
    return keys


def _head_lines(document: Document, palette: Palette) -> Iterator[Text]:
    """Yield the answer, what ran, its speed, and why that is inconclusive if it is."""
    yield folded((document.headline, palette.style("title")))
    if document.advice:
        yield folded((document.advice, None))
    _, speed, interval = document.facts[0].texts()
    words = f"  {interval}   {document.subtitle}"
    yield line([(speed, palette.style("title")), (words, palette.style("dim"))])
    if document.tone is Tone.UNSURE:
        yield folded((f"{document.verdict}: {document.summary}", palette.style("unsure")))


SCREEN = OverviewScreen
