"""Devices: the readings of GPUs and hosts over the run, each as a curve."""

from __future__ import annotations

import dataclasses
import functools
from typing import Final, NamedTuple

from textual.app import ComposeResult
from textual.widgets import Static

from profkit.analysis.views.devices import Curve, DevicesView, build_devices_view
from profkit.analysis.views.series import Series
from profkit.show.document import Column, Table
from profkit.show.figures import Unit
from profkit.text import duration, plural
from profkit.tui.screens.base import RunScreen
from profkit.tui.widgets.chart import chart, spark
from profkit.tui.widgets.columns import GAP
from profkit.tui.widgets.columns import Column as Shown
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import Piece, lines
from profkit.tui.widgets.readings import describe
from profkit.tui.widgets.table import VirtualTable

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


def _figure(statistic: str, curve: Curve) -> Figure:
    value = getattr(curve.series, statistic)
    return Figure(value, describe(curve.metric)[1](value))


def _role(curve: Curve) -> str:
    """Return the role of a reading: the device was slowed down, or nothing changed."""
    if curve.metric.startswith("throttled") and curve.series.most > 0:
        return "bad"
    return "dim" if curve.is_flat else ""


def _accent(series: object) -> str:
    return "accent"


def _drawn(series: Series, *, width: int, plain: bool) -> str:
    """Return the curve of a reading, and none of one that never changes."""
    return "" if series.least == series.most else spark(series, width, plain=plain)


_WORDS: Final = Unit(lambda figure: figure.words)

READINGS: Final = (
    Column("", "where", lambda curve: f"rank {curve.rank} {curve.device or curve.source}"),
    Column("", "reading", lambda curve: describe(curve.metric)[0]),
    Column("", "mean", functools.partial(_figure, "average"), _WORDS),
    Column("", "lowest", functools.partial(_figure, "least"), _WORDS),
    Column("", "highest", functools.partial(_figure, "most"), _WORDS),
)


class DevicesScreen(RunScreen[DevicesView]):
    """A table of readings with their curves, and a chart of the one under the cursor."""

    NAME = "devices"
    KEY = "6"
    TITLE = "Devices"
    KEEPS_UP = True
    EMPTY_IN_LOGS = "a training log says nothing of devices: record the job itself (profkit run)"

    DEFAULT_CSS = """
    DevicesScreen #frame-view Static { padding: 0 1; height: auto; }
    DevicesScreen #chart { padding: 1 1 0 1; }
    """

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(
            id="curves",
            empty="no collector has recorded anything: see 'profkit doctor' and --collect",
        )
        yield Static(id="chart")

    build = staticmethod(lambda source: build_devices_view(source.trace))

    def show(self, view: DevicesView) -> None:
        summary: list[list[Piece]] = []
        if view.curves:
            words = f"{plural(len(view.curves), 'reading')} of {', '.join(view.sources)}"
            summary.append([(f"{words} over {duration(view.length_ns)}", None)])
            if not any(curve.source == "nvml" for curve in view.curves):
                summary[0].append(("   no GPU was read", self.palette.style("dim")))
        for rank, device in view.lost:
            words = f"{device} of rank {rank} was lost during training; its readings end there"
            summary.append([(words, self.palette.style("bad"))])
        self.query_one("#summary", Static).update(lines(summary))
        self._show_table(view)
        self.on_virtual_table_moved()

    def _show_table(self, view: DevicesView) -> None:
        """Show the readings, with curves that take the room that the other columns leave.

        If that is too little, the lowest and highest readings move out of sight. The curves are not
        exported: they are of no use in a spreadsheet.
        """
        columns = columns_of(Table(READINGS, view.curves))
        widths = []
        for column in columns:
            widths.append(column.natural_width(range(len(view.curves))) + GAP)
        room = self.size.width - CURVE_MARGIN - sum(widths)
        if room < MIN_CURVE_WIDTH:
            room = max(1, room + sum(widths[3:]))
        exported = list(columns)
        series = [curve.series for curve in view.curves]
        draw = functools.partial(_drawn, width=room, plain=self.plain)
        roles = list(map(_role, view.curves))
        drawn = Shown("over the run", series, draw, role=_accent, searched=False, widest=room)
        columns[1] = dataclasses.replace(columns[1], roles=roles)
        columns.insert(3, drawn)
        self.table.show_rows(columns, exported=exported)

    def on_virtual_table_moved(self) -> None:
        """Draw the chart of the reading under the cursor."""
        drawn: list[list[Piece]] = []
        row = self.table.row
        if self.view is not None and row is not None and row < len(self.view.curves):
            curve = self.view.curves[row]
            words, show = describe(curve.metric)
            height = CHART_HEIGHT
            if self.size.height < SMALL_SCREEN:
                height = SMALL_CHART_HEIGHT
            count = plural(curve.series.readings, "reading")
            note = f"   {count}; filled up to the lowest, shaded up to the highest"
            heading = f"{self.table.columns[0].text(row)}: {words}"
            drawn.append([(heading, None), (note, self.palette.style("dim"))])
            for text in chart(curve.series, self.size.width - 4, height, show, plain=self.plain):
                drawn.append([(text, self.palette.style("accent"))])
        self.query_one("#chart", Static).update(lines(drawn))


SCREEN = DevicesScreen
