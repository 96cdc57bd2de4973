"""Loader: where batches are made, how many wait, and what more workers would change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from profkit.analysis.views.loader import (
    LOOP,
    LoaderView,
    QueueDepth,
    Workers,
    WorkersModel,
    build_loader_view,
)
from profkit.text import duration, percent, plural, significant
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets.chart import spark
from profkit.tui.widgets.draw import lines
from profkit.tui.widgets.table import Column, VirtualTable

MOST_DEPTHS: Final = 4
"""Ranks whose queues are drawn; the others' figures are in the JSON."""

MOST_WITHOUT_CORE: Final = 0.25
"""Where workers wait longer than this for a core, the model's assumption does not hold."""

BESIDE_ROWS: Final = 2
DEPTH_ROOM: Final = 48
"""What stands beside a queue's curve."""


class LoaderScreen(RunScreen[LoaderView]):
    NAME = "loader"
    KEY = "5"
    TITLE = "Loader"
    KEEPS_UP = True

    DEFAULT_CSS = """
    LoaderScreen Static { padding: 0 1; height: auto; }
    LoaderScreen .title { color: $text-muted; }
    LoaderScreen #makers { max-height: 50%; }
    LoaderScreen #model { height: 1fr; }
    """

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(id="makers")
        yield Static(id="depths")
        with Vertical(id="more"):
            yield Static("what other numbers of workers would give", classes="title")
            yield VirtualTable(id="model")

    @staticmethod
    def build(source: Source) -> LoaderView:
        return build_loader_view(source.trace)

    def show(self, view: LoaderView) -> None:
        makers = self.query_one("#makers", VirtualTable)
        makers.styles.height = len(view.makers) + BESIDE_ROWS
        makers.display = bool(view.makers)
        makers.show_rows(
            [
                column
                for column in _makers(view)
                if any(value is not None for value in column.values)
            ]
        )
        self.query_one("#summary", Static).update(lines(self._summary(view)))
        self.query_one("#depths", Static).update(lines(self._depths(view)))
        self.query_one("#depths").display = bool(view.depths)
        self.query_one("#more").display = view.model is not None
        if view.model is not None:
            self.query_one("#model", VirtualTable).show_rows(list(_model(view.model)))

    def on_resize(self) -> None:
        if self.view is not None:
            self.show(self.view)

    def _summary(self, view: LoaderView) -> Iterator[list[tuple[str, Any]]]:
        dim = self.palette.style("dim")
        if view.step_ns is None or view.wait_ns is None or view.wait_share is None:
            yield [("no steps are used, so nothing can be said of their input", None)]
            return
        waits = f"{duration(view.wait_ns)} for data, {percent(view.wait_share)} of it"
        yield [
            (f"a step of {duration(view.step_ns)} waits {waits}", None),
            (f"   {plural(view.steps, 'step')}", dim),
        ]
        if view.model is None:
            yield [
                (
                    "the inside of the loader was not recorded: torch's and Paddle's own loaders are timed, others are not",
                    dim,
                )
            ]
            return
        yield [(_verdict(view.model), None)]
        if view.model.no_core_share > MOST_WITHOUT_CORE:
            share = percent(view.model.no_core_share, 0)
            yield [
                (
                    f"{share} of the making of a batch is waiting for a core, for which more workers would wait, too",
                    self.palette.style("bad"),
                )
            ]
        yield [(_assumption(view), dim)]

    def _depths(self, view: LoaderView) -> Iterator[list[tuple[str, Any]]]:
        accent = self.palette.style("data")
        for depth in view.depths[:MOST_DEPTHS]:
            yield [
                (_depth_words(depth), None),
                (spark(depth.series, self.size.width - DEPTH_ROOM - 2, plain=self.plain), accent),
            ]
        if len(view.depths) > MOST_DEPTHS:
            yield [
                (
                    f"and the queues of {plural(len(view.depths) - MOST_DEPTHS, 'more rank')}, in --json",
                    self.palette.style("dim"),
                )
            ]

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """A maker's rank on the timeline."""
        if self.view is not None and message.table.id == "makers":
            self.go("timeline", Place(rank=self.view.makers[message.row].rank, phase="data"))


def _depth_words(depth: QueueDepth) -> str:
    series = depth.series
    return f"{f'rank {depth.rank}: {significant(series.average)} batches wait, {percent(depth.empty_share, 0)} of the time none':<{DEPTH_ROOM - 2}} "


def _verdict(model: WorkersModel) -> str:
    makes = (
        "the loop makes"
        if not model.workers
        else f"{plural(model.workers, 'worker')} make{'s' * (model.workers == 1)}"
    )
    every = f"{makes} a step's batches every {duration(model.now.delivery_ns)}, and the rest of a step takes {duration(model.rest_ns)}"
    if model.enough is None:
        return f"{every}: nothing can hide the loader"
    hidden = model.workers >= model.enough
    return (
        f"{every}: {plural(model.enough, 'worker')} would hide the loader"
        if not hidden
        else f"{every}: the loader is hidden"
    )


def _assumption(view: LoaderView) -> str:
    cores = (
        f" (there are {plural(view.cpu_count, 'core')}"
        + (", which the job computes on, too)" if view.shares_cores else ")")
        if view.cpu_count
        else ""
    )
    return f"the model takes for granted that workers slow neither each other nor the job{cores}"


def _makers(view: LoaderView) -> Iterator[Column]:
    makers = view.makers

    def times(title: str, values: list[float | None]) -> Column:
        return Column(title, values, duration, right=True, searched=False)

    yield Column(
        "batches are made by",
        [maker.name if maker.kind != LOOP else f"{maker.name} (the loop)" for maker in makers],
    )
    yield Column("rank", [maker.rank for maker in makers], right=True)
    yield Column(
        "batches", [maker.batches for maker in makers], "{:,}".format, right=True, searched=False
    )
    yield times("a batch", [maker.making_ns for maker in makers])
    yield times("read", [maker.read_ns for maker in makers])
    yield times("decode", [maker.decode_ns for maker in makers])
    yield times("collate", [maker.collate_ns for maker in makers])
    yield times("no core", [maker.no_core_ns for maker in makers])
    yield times("queue", [maker.queue_ns for maker in makers])
    yield Column(
        "busy",
        [maker.busy_share for maker in makers],
        lambda share: percent(share, 0),
        right=True,
        searched=False,
    )


def _model(model: WorkersModel) -> Iterator[Column]:
    rows = model.tried
    yield Column("workers", [row.workers for row in rows], right=True)
    yield Column(
        "", [_mark(row, model) for row in rows], role=lambda words: "accent" if words else ""
    )
    yield Column(
        "ready every", [row.delivery_ns for row in rows], duration, right=True, searched=False
    )
    yield Column("a step", [row.step_ns for row in rows], duration, right=True, searched=False)
    yield Column("waits", [row.wait_ns for row in rows], duration, right=True, searched=False)
    yield Column("cores busy", [row.cores for row in rows], significant, right=True, searched=False)


def _mark(row: Workers, model: WorkersModel) -> str:
    words = ["now"] * (row.workers == model.workers) + ["enough"] * (row.workers == model.enough)
    return ", ".join(words)


SCREEN = LoaderScreen
