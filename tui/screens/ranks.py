"""Ranks and links: each rank's phases beside the others', who waits for whom, and what the links carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from profkit.analysis.views.ranks import RanksView, build_ranks_view
from profkit.report import view_json
from profkit.text import byte_size, duration, percent, plural, significant
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets.draw import lines
from profkit.tui.widgets.table import Column, VirtualTable

FAR: Final = 0.02
"""A rank stands out in a phase where it is this share of a step away from the median rank."""

BESIDE_ROWS: Final = 2
"""The lines of a table that are no rows: its heading, and the bar with which it is scrolled."""

MOST_ROWS: Final = 20
"""A longer table is scrolled by itself."""

SIDE_BY_SIDE: Final = 150
"""So many columns hold who waits beside what the links carry."""


class Cell(NamedTuple):
    """A phase of a rank: its time, how far that is from the median rank, and whether it stands out."""

    ns: float
    deviation_ns: float
    far: bool


class RanksScreen(RunScreen[RanksView]):
    NAME = "ranks"
    KEY = "4"
    TITLE = "Ranks & links"
    KEEPS_UP = True

    DEFAULT_CSS = """
    RanksScreen Static { padding: 0 1; height: auto; }
    RanksScreen .title { color: $text-muted; }
    RanksScreen #heat { max-height: 50%; }
    RanksScreen #below { height: 1fr; layout: vertical; overflow-y: auto; }
    RanksScreen #below.-wide { layout: horizontal; }
    RanksScreen #below Vertical { height: auto; width: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "deviations", "times or deviations"),
        Binding("tab", "app.focus_next", "next table", show=False),
    ]

    def __init__(self, place: Place | None = None) -> None:
        super().__init__(place)
        self._deviations = False

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(id="heat")
        with Horizontal(id="below"):
            with Vertical(id="waiting"):
                yield Static("who waits for whom", classes="title")
                yield VirtualTable(id="waits", empty="nobody waits")
            with Vertical():
                with Vertical(id="links"):
                    yield Static("bus bandwidth by the size of the messages", classes="title")
                    yield VirtualTable(id="sizes")
                with Vertical(id="windows"):
                    yield Static("collectives in kernel windows", classes="title")
                    yield VirtualTable(id="kernels")

    @staticmethod
    def build(source: Source) -> RanksView:
        return build_ranks_view(source.trace, source.ceilings)

    @staticmethod
    def to_json(view: RanksView) -> Any:
        sizes = [
            {**dataclasses.asdict(use), "share_of_ceiling": use.share_of_ceiling}
            for use in view.sizes
        ]
        return {**view_json.of(view), "sizes": sizes}

    def show(self, view: RanksView) -> None:
        self.query_one("#summary", Static).update(lines(self._summary(view)))
        tables = {
            "heat": self._heat(view),
            "waits": _waits(view),
            "sizes": _sizes(view),
            "kernels": _windows(view),
        }
        for name, columns in tables.items():
            table = self.query_one(f"#{name}", VirtualTable)
            table.show_rows(list(columns))
            table.styles.height = min(table.count, MOST_ROWS) + BESIDE_ROWS
        self.query_one("#waiting").display = bool(view.collectives)
        self.query_one("#links").display = bool(view.sizes)
        self.query_one("#windows").display = bool(view.in_windows)
        self.query_one("#below").display = bool(view.collectives or view.sizes or view.in_windows)

    def on_resize(self) -> None:
        self.query_one("#below").set_class(self.size.width >= SIDE_BY_SIDE, "-wide")

    def _summary(self, view: RanksView) -> Iterator[list[tuple[str, Any]]]:
        dim = self.palette.style("dim")
        hosts = len({row.host for row in view.ranks})
        yield [
            (f"{plural(len(view.ranks), 'rank')} on {plural(hosts, 'host')}", None),
            (f"   means over {plural(view.steps, 'step')}", dim),
        ]
        if len(view.ranks) == 1:
            yield [("one rank: there is nobody to wait for", dim)]
        elif view.waits is None:
            yield [
                (
                    f"who waits cannot be judged: {view.collectives - view.matched:,} of {view.collectives:,} collectives were not seen on all ranks",
                    None,
                )
            ]
        elif view.late_rank is not None:
            late = view.late_rank
            cause = (
                f"; its {late.phase} takes {duration(late.excess_ns)} longer than the others'"
                if late.excess_ns > 0
                else ""
            )
            waited = f"the others wait {duration(late.waited_ns)} a step, {percent(late.share, 0)} of it for this rank"
            yield [(f"rank {late.rank} is late: {waited}{cause}", self.palette.style("bad"))]
        elif view.most_deviating is not None:
            rank, phase, excess = view.most_deviating
            yield [
                (
                    f"no rank is late again and again; farthest from the median: {phase} of rank {rank}, {duration(excess)} longer",
                    dim,
                )
            ]

    def _heat(self, view: RanksView) -> Iterator[Column]:
        """Ranks in rows, phases in columns; what stands out has a sign beside its colour."""
        yield Column("rank", [row.rank for row in view.ranks], right=True)
        if len({row.host for row in view.ranks}) > 1:
            yield Column("host", [row.host for row in view.ranks])
        yield Column("step", [row.wall_ns for row in view.ranks], duration, right=True)
        step = sum(view.median_ns.values())
        for phase in view.phases:
            cells = [
                _cell(row.phase_ns.get(phase), row.deviation_ns.get(phase), step)
                for row in view.ranks
            ]
            yield Column(
                phase,
                cells,
                self._deviation if self._deviations else self._time,
                right=True,
                role=_role,
                searched=False,
            )

    def _time(self, cell: Cell) -> str:
        return duration(cell.ns) + self._sign(cell)

    def _deviation(self, cell: Cell) -> str:
        return (
            f"{'+' if cell.deviation_ns > 0 else ''}{duration(cell.deviation_ns)}{self._sign(cell)}"
        )

    def _sign(self, cell: Cell) -> str:
        up, down = ("^", "v") if self.plain else ("▲", "▼")
        return "  " if not cell.far else f" {up}" if cell.deviation_ns > 0 else f" {down}"

    def action_deviations(self) -> None:
        """Show how far each rank is from the median in the place of its times, or the times again."""
        self._deviations = not self._deviations
        if self.view is not None:
            self.show(self.view)
        self.tell("each phase beyond the median rank" if self._deviations else "")

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """A rank on the timeline."""
        if self.view is None:
            return
        if message.table.id == "heat":
            self.go("timeline", Place(rank=self.view.ranks[message.row].rank))
        elif message.table.id == "waits" and self.view.waits:
            self.go("timeline", Place(rank=self.view.waits[message.row].late_rank))

    def look_at(self, place: Place) -> None:
        ranks = [row.rank for row in self.view.ranks] if self.view is not None else []
        if place.rank in ranks:
            self.query_one("#heat", VirtualTable).select(ranks.index(place.rank))


def _cell(ns: float | None, deviation_ns: float | None, step_ns: float) -> Cell | None:
    return (
        None
        if ns is None or deviation_ns is None
        else Cell(ns, deviation_ns, abs(deviation_ns) > FAR * step_ns)
    )


def _role(cell: Cell) -> str:
    return "" if not cell.far else "bad" if cell.deviation_ns > 0 else "good"


def _waits(view: RanksView) -> Iterator[Column]:
    waits = view.waits or ()
    yield Column("rank", [wait.rank for wait in waits], right=True)
    yield Column("waits for", [wait.late_rank for wait in waits], "rank {}".format)
    yield Column(
        "a step", [wait.waiting_ns for wait in waits], duration, right=True, searched=False
    )
    yield Column(
        "exposed", [wait.exposed_ns for wait in waits], duration, right=True, searched=False
    )
    yield Column(
        "how often",
        [wait.collectives for wait in waits],
        lambda count: f"{count:,} of {view.collectives:,}",
        right=True,
        searched=False,
    )


def _sizes(view: RanksView) -> Iterator[Column]:
    sizes = view.sizes
    yield Column("collective", [use.op for use in sizes])
    yield Column("message", [use.bytes for use in sizes], byte_size, right=True, searched=False)
    yield Column("bus", [use.bus_bytes_per_s for use in sizes], _rate, right=True, searched=False)
    yield Column(
        "alone", [use.ceiling_bus_bytes_per_s for use in sizes], _rate, right=True, searched=False
    )
    yield Column(
        "of that",
        [use.share_of_ceiling for use in sizes],
        lambda share: percent(share, 0),
        right=True,
        searched=False,
    )
    yield Column(
        "transfer", [use.transfer_ns for use in sizes], duration, right=True, searched=False
    )
    yield Column(
        "a step", [use.messages_per_step for use in sizes], significant, right=True, searched=False
    )
    yield Column("over", [f"{use.backend}, {use.group_size} ranks" for use in sizes])


def _rate(bytes_per_s: float) -> str:
    return f"{byte_size(bytes_per_s)}/s"


def _windows(view: RanksView) -> Iterator[Column]:
    found = view.in_windows
    yield Column("kernel", [each.name for each in found], stretches=True)
    yield Column("calls", [each.calls for each in found], "{:,}".format, right=True, searched=False)
    yield Column(
        "a step", [each.ns_per_step for each in found], duration, right=True, searched=False
    )
    yield Column("mean", [each.mean_ns for each in found], duration, right=True, searched=False)
    yield Column(
        "shortest",
        [f"{duration(each.shortest_rank_ns)} on rank {each.shortest_rank}" for each in found],
        searched=False,
    )
    yield Column(
        "longest",
        [f"{duration(each.longest_rank_ns)} on rank {each.longest_rank}" for each in found],
        searched=False,
    )


SCREEN = RanksScreen
