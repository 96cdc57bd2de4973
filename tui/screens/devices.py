"""Devices: the readings of GPUs and hosts over the run, each as a curve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from textual.app import ComposeResult
from textual.widgets import Static

from profkit.analysis.views.devices import Curve, DevicesView, build_devices_view
from profkit.text import duration, plural
from profkit.tui.library import Source
from profkit.tui.screens.base import RunScreen
from profkit.tui.widgets.chart import chart, spark
from profkit.tui.widgets.columns import GAP, Column, Columns
from profkit.tui.widgets.draw import Piece, lines
from profkit.tui.widgets.readings import describe
from profkit.tui.widgets.table import VirtualTable

CURVE: Final = "over the run"
MIN_CURVE_WIDTH: Final = 20
CURVE_MARGIN: Final = 5
CHART_HEIGHT: Final = 5
SMALL_CHART_HEIGHT: Final = 3
SMALL_SCREEN: Final = 30
"""On a screen with fewer lines the chart is smaller."""


class Figure(NamedTuple):
    """A figure as text, which is sorted by its value."""

    value: float
    words: str


class DevicesScreen(RunScreen[DevicesView]):
    """A table of readings with their curves, and a chart of the one under the cursor."""

    NAME = "devices"
    KEY = "6"
    TITLE = "Devices"
    KEEPS_UP = True

    DEFAULT_CSS = """
    DevicesScreen Static { padding: 0 1; height: auto; }
    DevicesScreen #chart { padding: 1 1 0 1; }
    """

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(
            id="curves",
            empty="no collector has recorded anything: see 'profkit doctor' and --collect",
        )
        yield Static(id="chart")

    @staticmethod
    def build(source: Source) -> DevicesView:
        return build_devices_view(source.trace)

    def show(self, view: DevicesView) -> None:
        self.query_one("#summary", Static).update(lines(self._summary(view)))
        self.query_one("#curves", VirtualTable).show_rows(self._columns(view))
        self.on_virtual_table_moved()

    def _columns(self, view: DevicesView) -> list[Column]:
        """Return the columns, with a curve that takes the room that the others leave.

        If that is too little, the lowest and highest readings move out of sight.
        """
        table: Columns[Curve] = Columns(view.curves)
        table.text("where", _origin, widest=28)
        table.text("reading", lambda curve: describe(curve.metric)[0])
        for title, read in (
            ("mean", lambda curve: _figure(curve, curve.series.average)),
            ("lowest", lambda curve: _figure(curve, curve.series.least)),
            ("highest", lambda curve: _figure(curve, curve.series.most)),
        ):
            table.figure(title, read, lambda figure: str(figure.words))
        widths = [column.natural_width(range(len(view.curves))) + GAP for column in table.columns]
        room = self.size.width - CURVE_MARGIN - sum(widths)
        if room < MIN_CURVE_WIDTH:
            room = max(1, room + sum(widths[3:]))
        curves = Column(
            CURVE,
            [curve.series for curve in view.curves],
            lambda series: spark(series, room, plain=self.plain),
            role=lambda _: "accent",
            searched=False,
            widest=room,
        )
        return [*table.columns[:3], curves, *table.columns[3:]]

    def rows(self) -> Iterable[Sequence[str]]:
        """Yield the rows without their curves, which are of no use in a spreadsheet."""
        titles = [column.title for column in self.query_one("#curves", VirtualTable).columns]
        for row in super().rows():
            cells = list(row)
            del cells[titles.index(CURVE)]
            yield cells

    def _summary(self, view: DevicesView) -> Iterator[list[Piece]]:
        if view.curves:
            words = f"{plural(len(view.curves), 'reading')} of {', '.join(view.sources)}"
            pieces: list[Piece] = [(f"{words} over {duration(view.length_ns)}", None)]
            if not any(curve.source == "nvml" for curve in view.curves):
                pieces.append(("   no GPU was read", self.palette.style("dim")))
            yield pieces
        for rank, device in view.lost:
            words = f"{device} of rank {rank} was lost during training; its readings end there"
            yield [(words, self.palette.style("bad"))]

    def on_virtual_table_moved(self) -> None:
        """Draw the chart of the reading under the cursor."""
        row = self.query_one("#curves", VirtualTable).row
        widget = self.query_one("#chart", Static)
        if self.view is None or row is None or row >= len(self.view.curves):
            widget.update("")
        else:
            widget.update(lines(self._chart_lines(self.view.curves[row])))

    def _chart_lines(self, curve: Curve) -> Iterator[list[Piece]]:
        """Yield the heading and the rows of a chart."""
        words, show = describe(curve.metric)
        height = CHART_HEIGHT
        if self.size.height < SMALL_SCREEN:
            height = SMALL_CHART_HEIGHT
        count = plural(curve.series.readings, "reading")
        note = f"   {count}; filled up to the lowest, shaded up to the highest"
        yield [(f"{_origin(curve)}: {words}", None), (note, self.palette.style("dim"))]
        for row in chart(curve.series, self.size.width - 4, height, show, plain=self.plain):
            yield [(row, self.palette.style("accent"))]


def _origin(curve: Curve) -> str:
    """Return what a reading is from: the device, otherwise the host or the process."""
    return f"rank {curve.rank} {curve.device or curve.source}"


def _figure(curve: Curve, value: float) -> Figure:
    return Figure(value, describe(curve.metric)[1](value))


SCREEN = DevicesScreen
