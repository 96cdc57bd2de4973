"""Ranks and links: the phases of each rank, who waits for whom, and what the links carry."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from profkit.analysis.views.ranks import RanksView, build_ranks_view
from profkit.report.sharded_sections import (
    DIMENSIONS_TITLE,
    STAGE_COLUMNS,
    STAGES_TITLE,
    dimension_columns,
    dimension_notes,
    stage_notes,
)
from profkit.show import json as show_json
from profkit.show.document import Table
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets import ranks_draw
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import folded, lines
from profkit.tui.widgets.table import VirtualTable

HEADING_AND_SCROLL_BAR: Final = 2
MAX_ROWS: Final = 20
"""A table with more rows scrolls on its own."""

SIDE_BY_SIDE_WIDTH: Final = 150
"""On a screen of this width the lower tables are next to each other."""


class RanksScreen(RunScreen[RanksView]):
    """A table of ranks and phases, and below it the waits, the links and the collectives."""

    NAME = "ranks"
    KEY = "4"
    TITLE = "Ranks"
    KEEPS_UP = True

    DEFAULT_CSS = """
    RanksScreen #frame-view Static { padding: 0 1; height: auto; }
    RanksScreen .title { color: $text-muted; }
    RanksScreen #heat { max-height: 50%; }
    RanksScreen #below { height: 1fr; layout: vertical; overflow-y: auto; }
    RanksScreen #below.-wide { layout: horizontal; }
    RanksScreen #below Vertical { height: auto; width: 1fr; }
    RanksScreen #below #sharded { width: 2fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "deviations", "times or deviations"),
        Binding("tab", "app.focus_next", "next table", show=False),
    ]

    _deviations = False
    """True if distances to the median rank are shown instead of times."""

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(id="heat")
        with Horizontal(id="below"):
            with Vertical(id="sharded"):
                yield Static(DIMENSIONS_TITLE, classes="title")
                yield VirtualTable(id="dimensions")
                yield Static(id="dimension_notes")
                with Vertical(id="pipeline"):
                    yield Static(STAGES_TITLE, classes="title")
                    yield VirtualTable(id="stages")
                    yield Static(id="stage_notes")
            with Vertical(id="waiting"):
                yield Static("Who waits for whom", classes="title")
                yield VirtualTable(id="waits", empty="no rank waits for another")
            with Vertical():
                with Vertical(id="links"):
                    yield Static(classes="title", id="sizes_title")
                    yield VirtualTable(id="sizes")
                with Vertical(id="windows"):
                    yield Static("Collectives in kernel windows", classes="title")
                    yield VirtualTable(id="kernels")

    build = staticmethod(lambda source: build_ranks_view(source.trace, source.ceilings))

    @staticmethod
    def to_json(view: RanksView) -> Any:
        return show_json.of(view) | {"sizes": show_json.of(Table(ranks_draw.SIZES, view.sizes))}

    def show(self, view: RanksView) -> None:
        self.query_one("#below").set_class(self.size.width >= SIDE_BY_SIDE_WIDTH, "-wide")
        summary = ranks_draw.summary_lines(view, self.palette)
        self.query_one("#summary", Static).update(lines(summary))
        sharded, pipeline = view.sharded, view.sharded.pipeline if view.sharded else None
        tables = {
            "waits": ranks_draw.wait_table(view),
            "sizes": Table(ranks_draw.SIZES, view.sizes),
            "kernels": Table(ranks_draw.WINDOWS, view.in_windows),
        }
        if sharded is not None:
            tables["dimensions"] = Table(dimension_columns(sharded), sharded.places)
        if pipeline is not None:
            tables["stages"] = Table(STAGE_COLUMNS, pipeline.stages)
        drawn = {name: columns_of(each) for name, each in tables.items()}
        drawn["heat"] = ranks_draw.heat_columns(view, deviations=self._deviations, plain=self.plain)
        for name, columns in drawn.items():
            table = self.query_one(f"#{name}", VirtualTable)
            table.show_rows(columns)
            table.styles.height = min(table.count, MAX_ROWS) + HEADING_AND_SCROLL_BAR
        title = "Bus bandwidth by message size"
        if view.matched < view.collectives:
            title += "; not all ranks recorded the collectives: transfer may include their lateness"
        self.query_one("#sizes_title", Static).update(title)
        waits = self.query_one("#waits", VirtualTable)
        waits.empty = "no rank waits for another"
        if view.waits is None:
            waits.empty = f"inconclusive: {view.why_no_waits}"
        self.query_one("#sharded").display = sharded is not None
        self.query_one("#pipeline").display = pipeline is not None
        if sharded is not None:
            words = " ".join(dimension_notes(sharded))
            self.query_one("#dimension_notes", Static).update(folded((words, None)))
        if pipeline is not None:
            words = " ".join(stage_notes(pipeline))
            self.query_one("#stage_notes", Static).update(folded((words, None)))
        self.query_one("#waiting").display = bool(view.collectives)
        self.query_one("#links").display = bool(view.sizes)
        self.query_one("#windows").display = bool(view.in_windows)
        self.query_one("#below").display = bool(view.collectives or view.sizes or view.in_windows)

    def action_deviations(self) -> None:
        """Switch between each rank's times and its distance to the median rank."""
        self._deviations = not self._deviations
        if self.view is not None:
            self.show(self.view)
        self.tell("")
        if self._deviations:
            self.tell("distance to the median rank")

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Show a rank on the timeline: the one of the row, or the late one of a wait."""
        if self.view is None:
            return
        if message.table.id == "heat":
            self.go("timeline", Place(rank=self.view.ranks[message.row].rank))
        elif message.table.id == "waits" and self.view.waits:
            self.go("timeline", Place(rank=self.view.waits[message.row].late_rank))
        elif message.table.id == "stages" and self.view.sharded and self.view.sharded.pipeline:
            self.go("timeline", Place(rank=self.view.sharded.pipeline.stages[message.row].rank))

    def look_at(self, place: Place) -> None:
        if self.view is None:
            return
        for row, rank in enumerate(self.view.ranks):
            if rank.rank == place.rank:
                self.query_one("#heat", VirtualTable).select(row)


SCREEN = RanksScreen
