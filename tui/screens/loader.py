"""Loader: where batches are made, how many wait, and the effect of more workers."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from profkit.analysis.views.loader import LoaderView, build_loader_view
from profkit.show.document import Table
from profkit.text import percent, plural, significant
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets.chart import spark
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import Piece, lines
from profkit.tui.widgets.loader_draw import MAKERS, model_table, summary_lines
from profkit.tui.widgets.table import VirtualTable

MAX_QUEUES: Final = 4
"""The queues of this many ranks are drawn; the JSON has those of all ranks."""

HEADING_AND_SCROLL_BAR: Final = 2
QUEUE_WORDS_WIDTH: Final = 48
"""Cells for the words next to a queue's curve."""


class LoaderScreen(RunScreen[LoaderView]):
    """The workers that make batches, the queues, and the model of other worker counts."""

    NAME = "loader"
    KEY = "5"
    TITLE = "Loader"
    KEEPS_UP = True

    DEFAULT_CSS = """
    LoaderScreen #frame-view Static { padding: 0 1; height: auto; }
    LoaderScreen .title { color: $text-muted; }
    LoaderScreen #makers { max-height: 50%; }
    LoaderScreen #model { height: 1fr; }
    """

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(id="makers")
        yield Static(id="queues")
        with Vertical(id="more"):
            yield Static("Other numbers of workers", classes="title")
            yield VirtualTable(id="model")

    build = staticmethod(lambda source: build_loader_view(source.trace))

    def show(self, view: LoaderView) -> None:
        makers = self.query_one("#makers", VirtualTable)
        makers.styles.height = len(view.makers) + HEADING_AND_SCROLL_BAR
        makers.display = bool(view.makers)
        makers.show_rows(columns_of(Table(MAKERS, view.makers, only_known=True)))
        summary = summary_lines(view, self.palette, of_log=self._shows_log())
        self.query_one("#summary", Static).update(lines(summary))
        queues: list[list[Piece]] = []
        for depth in view.depths[:MAX_QUEUES]:
            waiting = significant(depth.series.average)
            empty = percent(depth.empty_share, 0)
            words = f"rank {depth.rank}: {waiting} batches wait, none for {empty} of the time"
            curve = spark(depth.series, self.size.width - QUEUE_WORDS_WIDTH - 2, plain=self.plain)
            words = f"{words:<{QUEUE_WORDS_WIDTH - 2}} "
            queues.append([(words, None), (curve, self.palette.style("data"))])
        hidden = len(view.depths) - MAX_QUEUES
        if hidden > 0:
            words = f"and the queues of {plural(hidden, 'more rank')}, in --json"
            queues.append([(words, self.palette.style("dim"))])
        self.query_one("#queues", Static).update(lines(queues))
        self.query_one("#queues").display = bool(view.depths)
        self.query_one("#more").display = view.model is not None and not view.unexplained_ns
        if view.model is not None:
            self.query_one("#model", VirtualTable).show_rows(columns_of(model_table(view.model)))

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Show the rank of a worker on the timeline."""
        if self.view is not None and message.table.id == "makers":
            self.go("timeline", Place(rank=self.view.makers[message.row].rank, phase="data"))


SCREEN = LoaderScreen
