"""Devices: what GPUs and hosts did over the run, each reading as a curve; nothing is shown for what was not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from textual.app import ComposeResult
from textual.widgets import Static

from profkit.analysis.views.devices import Curve, DevicesView, build_devices_view
from profkit.text import duration, plural
from profkit.tui.library import Source
from profkit.tui.screens.base import RunScreen
from profkit.tui.widgets.chart import chart, spark
from profkit.tui.widgets.draw import lines
from profkit.tui.widgets.readings import describe
from profkit.tui.widgets.table import Column, VirtualTable

CURVE: Final = "over the run"
NARROWEST_CURVE: Final = 20
CHART_HEIGHT: Final = 5
SMALL: Final = 30
"""On a screen of fewer lines the chart is half as high."""


class Told(NamedTuple):
    """A figure in words; it is sorted by its value."""

    value: float
    words: str


class DevicesScreen(RunScreen[DevicesView]):
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
            empty="nothing was collected beside the loop: see 'profkit doctor', and --collect",
        )
        yield Static(id="chart")

    @staticmethod
    def build(source: Source) -> DevicesView:
        return build_devices_view(source.trace)

    def show(self, view: DevicesView) -> None:
        self.query_one("#summary", Static).update(lines(self._summary(view)))
        table = self.query_one("#curves", VirtualTable)
        where, reading, mean, *others = _columns(view)
        table.show_rows(
            [
                where,
                reading,
                mean,
                self._curves(view, self._room((where, reading, mean), others)),
                *others,
            ]
        )
        self._show_chart(table.row)

    def _room(self, first: Sequence[Column], others: Sequence[Column]) -> int:
        """What a curve may take beside all columns; where that is too little, beside the first ones."""
        widths = [
            sum(column.natural_width(range(len(column.values))) + 2 for column in columns)
            for columns in (first, others)
        ]
        room = self.size.width - widths[0] - 5
        return room - widths[1] if room - widths[1] >= NARROWEST_CURVE else max(1, room)

    def _curves(self, view: DevicesView, width: int) -> Column:
        return Column(
            CURVE,
            [curve.series for curve in view.curves],
            lambda series: spark(series, width, plain=self.plain),
            role=lambda _: "accent",
            searched=False,
            widest=width,
        )

    def on_resize(self) -> None:
        if self.view is not None:
            self.show(self.view)

    def rows(self) -> Iterable[Sequence[str]]:
        """The figures alone: a curve of characters is of no use in a spreadsheet."""
        return (
            [cell for cell, column in zip(row, self._titles(), strict=True) if column != CURVE]
            for row in super().rows()
        )

    def _titles(self) -> list[str]:
        return [column.title for column in self.query_one("#curves", VirtualTable).columns]

    def _summary(self, view: DevicesView) -> Iterator[list[tuple[str, Any]]]:
        if view.curves:
            devices = len(
                {(curve.rank, curve.device) for curve in view.curves if curve.source == "nvml"}
            )
            words = f"{plural(len(view.curves), 'reading')} of {', '.join(view.sources)} over {duration(view.length_ns)}"
            yield [
                (words, None),
                ("" if devices else "   no GPU was read", self.palette.style("dim")),
            ]
        for rank, device in view.lost:
            yield [
                (
                    f"{device} of rank {rank} was lost while it trained; its readings end there",
                    self.palette.style("bad"),
                )
            ]

    def on_virtual_table_moved(self, message: VirtualTable.Moved) -> None:
        self._show_chart(message.row)

    def _show_chart(self, row: int | None) -> None:
        if self.view is None or row is None or row >= len(self.view.curves):
            self.query_one("#chart", Static).update("")
            return
        curve = self.view.curves[row]
        words, show = describe(curve.metric)
        height = CHART_HEIGHT if self.size.height >= SMALL else (CHART_HEIGHT + 1) // 2
        drawn = chart(curve.series, self.size.width - 4, height, show, plain=self.plain)
        accent, dim = self.palette.style("accent"), self.palette.style("dim")
        heading = [
            (f"{_place(curve)}: {words}", None),
            (
                f"   {plural(curve.series.readings, 'reading')}; filled to the lowest, shaded to the highest",
                dim,
            ),
        ]
        self.query_one("#chart", Static).update(
            lines([heading, *([(row_, accent)] for row_ in drawn)])
        )


def _place(curve: Curve) -> str:
    """Where a reading is from: the device, else the host or the process."""
    whose = f"rank {curve.rank}"
    return f"{whose} {curve.device}" if curve.device else f"{whose} {curve.source}"


def _columns(view: DevicesView) -> Iterator[Column]:
    curves = view.curves
    yield Column("where", [_place(curve) for curve in curves], widest=28)
    yield Column("reading", [describe(curve.metric)[0] for curve in curves])
    for title, values in (
        ("mean", [curve.series.average for curve in curves]),
        ("lowest", [curve.series.least for curve in curves]),
        ("highest", [curve.series.most for curve in curves]),
    ):
        told = [
            Told(value, describe(curve.metric)[1](value))
            for curve, value in zip(curves, values, strict=True)
        ]
        yield Column(title, told, lambda each: str(each.words), right=True, searched=False)


SCREEN = DevicesScreen
