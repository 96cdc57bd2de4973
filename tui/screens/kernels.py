"""Kernels by name: what each costs a step, whether it uses the Tensor Cores, and what holds it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from profkit.analysis.kernels.calls import KernelInstance, calls_of
from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView, kernels_of
from profkit.text import byte_size, duration, percent, plural, significant
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets.draw import lines
from profkit.tui.widgets.table import Column, VirtualTable, fit_columns

NAME_ROOM: Final = 26
"""So much of a kernel's name is worth more than another column: those that do not fit are told below the table."""

LEAST_CATEGORY: Final = 0.005
"""Categories with a smaller share of the time are in the JSON and in the table alone."""


def _columns(view: KernelsView) -> Iterator[Column]:
    """All columns, the most telling first. One of which nothing is known is left out."""
    groups = view.groups
    yield Column(view.noun, [group.name for group in groups], stretches=True)

    def column(
        title: str,
        values: Sequence[Any],
        show: Callable[[Any], str],
        role: Callable[[Any], str] | None = None,
    ) -> Column:
        return Column(title, values, show, right=True, role=role, searched=False)

    figures = [
        column("share", [group.share for group in groups], percent),
        column("a step", [group.ns_per_step for group in groups], duration),
        column("calls", [group.calls for group in groups], "{:,}".format),
        column("mean", [group.mean_ns for group in groups], duration),
        Column("category", [group.category for group in groups]),
        Column(
            "bound by",
            [group.bound for group in groups],
            role=lambda bound: "bad" if bound == "launch" else "",
        ),
        column("of ceiling", [group.ceiling_share for group in groups], percent),
        column(
            "Tensor Cores",
            [group.tensor_core_share if group.eligible else None for group in groups],
            percent,
            lambda share: "" if share else "bad",
        ),
        column("waited for", [group.launch_bound_share for group in groups], percent),
        column("queued", [group.queued_ratio for group in groups], _times),
        column("total", [group.total_ns for group in groups], duration),
        column("longest", [group.longest.duration_ns for group in groups], duration),
    ]
    yield from (each for each in figures if any(value is not None for value in each.values))


def _times(ratio: float) -> str:
    return f"{significant(ratio)} x"


class KernelsScreen(RunScreen[KernelsView]):
    NAME = "kernels"
    KEY = "3"
    TITLE = "Kernels"
    KEEPS_UP = True
    BY_RANK = True

    DEFAULT_CSS = """
    KernelsScreen Static { padding: 0 1; height: auto; }
    KernelsScreen #kernel { padding: 1 1 0 1; max-height: 7; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "calls", "its calls"),
    ]

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(
            id="kernels", empty="no kernels were captured: record some with --kernels 20:23"
        )
        yield Static(id="kernel")

    @staticmethod
    def build(source: Source) -> KernelsView:
        return kernels_of(source.trace, source.ceilings, source.rank)

    def show(self, view: KernelsView) -> None:
        table = self.query_one("#kernels", VirtualTable)
        self.query_one("#summary", Static).update(lines(self._summary(view)))
        table.show_rows(
            fit_columns(list(_columns(view)), self.size.width, NAME_ROOM),
            keys=[(group.name, group.category) for group in view.groups],
        )
        if not table.sort_title and view.groups:
            table.sort_by("share", descending=True)
        self._show_kernel(table.row)

    def on_resize(self) -> None:
        if self.view is not None:
            self.show(self.view)

    def rows(self) -> Iterable[Sequence[str]]:
        """All columns, also those that have no room."""
        if self.view is not None:
            columns = list(_columns(self.view))
            yield [column.title for column in columns]
            yield from (
                [column.text(row) for column in columns]
                for row in self.query_one("#kernels", VirtualTable).order.tolist()
            )

    def _summary(self, view: KernelsView) -> Iterator[list[tuple[str, Any]]]:
        dim = self.palette.style("dim")
        for problem in view.problems:
            yield [(f"{problem}; rows after that place are lost", self.palette.style("bad"))]
        if not view.groups:
            return
        ranks = (
            f"rank {view.ranks[0]} of {view.ranks_in_all}"
            if len(view.ranks) < view.ranks_in_all
            else plural(view.ranks_in_all, "rank")
        )
        captured = f"{plural(view.steps, 'step')} captured" if view.steps else "no steps known"
        yield [
            (
                f"{plural(len(view.groups), view.noun)}, {plural(view.calls, 'call')} on {', '.join(view.devices)}",
                None,
            ),
            (f"   {captured}, {ranks}", dim),
        ]
        shown = [
            f"{name} {percent(share, 0)}"
            for name, share in view.category_share.items()
            if share >= LEAST_CATEGORY
        ]
        yield [
            ("  ".join(shown), None),
            ("  the others less" if len(shown) < len(view.category_share) else "", dim),
        ]
        if known := "   ".join(_known(view)):
            yield [(known, dim)]

    def on_virtual_table_moved(self, message: VirtualTable.Moved) -> None:
        self._show_kernel(message.row)

    def _show_kernel(self, row: int | None) -> None:
        groups = self.view.groups if self.view is not None else ()
        self.query_one("#kernel", Static).update(
            lines(_describe(groups[row])) if row is not None and row < len(groups) else ""
        )

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """The longest call on the timeline."""
        if self.view is not None:
            group = self.view.groups[message.row]
            self.go(
                "timeline",
                Place(
                    rank=group.longest.rank,
                    row=group.longest.row,
                    kernel=group.name,
                    category=group.category,
                ),
            )

    def action_calls(self) -> None:
        row = self.query_one("#kernels", VirtualTable).row
        if self.view is not None and row is not None:
            self.app.push_screen(CallsScreen(self.view.groups[row], self.rank))

    def look_at(self, place: Place) -> None:
        table = self.query_one("#kernels", VirtualTable)
        found = next((key for key in self._keys() if key[0] == place.kernel), None)
        if found is not None:
            table.select(found)
        elif place.category is not None:
            self._apply_filter(place.category)

    def _keys(self) -> list[tuple[str, str]]:
        return (
            [(group.name, group.category) for group in self.view.groups]
            if self.view is not None
            else []
        )


def _known(view: KernelsView) -> Iterator[str]:
    if view.tensor_core_share is not None:
        yield f"Tensor Cores: {percent(view.tensor_core_share)} of the time of matrix work"
    if view.launch_bound_share is not None:
        yield f"the device waited for launches worth {percent(view.launch_bound_share)} of the time"
    if view.noun == "operator":
        yield "operators on a CPU: no launches, no Tensor Cores"
    elif not view.ceilings:
        yield "ceilings not known: 'profkit ceilings' measures them"


def _describe(group: KernelGroup) -> Iterator[list[tuple[str, Any]]]:
    """What there is to know of a kernel, its whole name first."""
    yield [(group.name, None)]
    step = (
        f"{duration(group.ns_per_step)} a step" if group.ns_per_step is not None else "in no step"
    )
    longest = f"the longest {duration(group.longest.duration_ns)} on rank {group.longest.rank}"
    yield [
        (
            f"{group.category}: {percent(group.share)} of all time, {step}, {plural(group.calls, 'call')} of {duration(group.mean_ns)}, {longest}",
            None,
        )
    ]
    told = [
        f"bound by {group.bound}" if group.bound else "",
        f"{percent(group.ceiling_share)} of its ceiling" if group.ceiling_share is not None else "",
        f"{percent(group.tensor_core_share)} on Tensor Cores"
        if group.eligible and group.tensor_core_share is not None
        else "",
        f"the device waited for {percent(group.launch_bound_share)} of it"
        if group.launch_bound_share is not None
        else "",
        f"queued {_times(group.queued_ratio)} as long as it runs"
        if group.queued_ratio is not None
        else "",
    ]
    if any(told):
        yield [("   ".join(filter(None, told)), None)]


class CallsScreen(RunScreen[tuple[KernelInstance, ...]]):
    """The longest calls of one kernel; Enter shows one on the timeline."""

    TITLE = "Calls"
    KEY = ""
    BY_RANK = True

    def __init__(self, group: KernelGroup, rank: int | None) -> None:
        super().__init__(Place(rank=rank))
        self._group = group
        self.NAME = f"calls of {group.category} {group.name}"  # type: ignore[misc]  # each kernel has a view of its own

    def compose_view(self) -> ComposeResult:
        yield VirtualTable()

    def build(self, source: Source) -> tuple[KernelInstance, ...]:  # type: ignore[override]  # it is about a kernel, which the class does not know
        return calls_of(
            source.trace, self._group.name, self._group.category, source.ceilings, source.rank
        )

    def show(self, view: tuple[KernelInstance, ...]) -> None:
        self.query_one(VirtualTable).show_rows(
            [
                column
                for column in _call_columns(view)
                if any(value is not None for value in column.values)
            ]
        )
        self.tell(
            f"the {plural(len(view), 'call')} of {self._group.name}"
            if len(view) == self._group.calls
            else f"the longest calls of {self._group.name}"
        )

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        if self.view is not None:
            call = self.view[message.row]
            self.go(
                "timeline",
                Place(
                    rank=call.rank,
                    step=call.step,
                    start_ns=call.start_ns,
                    end_ns=call.start_ns + call.duration_ns,
                    row=call.row,
                ),
            )


def _call_columns(calls: Sequence[KernelInstance]) -> Iterator[Column]:
    def column(title: str, values: list[Any], show: Callable[[Any], str]) -> Column:
        return Column(title, values, show, right=True, searched=False)

    yield column("duration", [call.duration_ns for call in calls], duration)
    yield column("rank", [call.rank for call in calls], str)
    yield column("step", [call.step for call in calls], "{:,}".format)
    yield Column("phase", [call.phase for call in calls])
    yield Column("operator", [call.op for call in calls], stretches=True)
    yield Column("device", [call.device for call in calls])
    yield column("stream", [call.stream for call in calls], str)
    yield column("queued", [call.queued_ns for call in calls], duration)
    yield column("grid", [call.grid for call in calls], _extents)
    yield column("block", [call.block for call in calls], _extents)
    yield column("bytes", [call.bytes for call in calls], byte_size)
    yield Column("bound by", [call.bound for call in calls])
    yield column("of ceiling", [call.ceiling_share for call in calls], percent)


def _extents(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))


SCREEN = KernelsScreen
