"""Kernels by name: cost per step, use of the Tensor Cores, and what limits each."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from profkit.analysis.kernels.calls import KernelInstance, calls_of
from profkit.analysis.kernels.device_view import build_device_view
from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView, kernels_of
from profkit.frame.run_frame import frame_of
from profkit.report.device_sections import device_shares
from profkit.report.kernel_sections import kernel_columns
from profkit.show.document import Table
from profkit.text import plural
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets.columns import GAP, MEASURED_ROWS
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import lines
from profkit.tui.widgets.kernel_draw import CALLS, kernel_lines, summary_lines
from profkit.tui.widgets.table import VirtualTable

MIN_NAME_WIDTH: Final = 26
"""A kernel's name gets at least this many cells before further columns are shown."""


def _kernels_and_devices(source: Source) -> KernelsView:
    """Return the kernels, and what the devices did in the used steps."""
    trace, rank = source.trace, source.rank
    view = kernels_of(trace, source.ceilings, rank)
    devices = build_device_view(trace, frame_of(trace).selection.steps, rank)
    shares = device_shares(devices) if devices else None
    return dataclasses.replace(view, device_shares=shares)


class KernelsScreen(RunScreen[KernelsView]):
    """A table of kernels, and the figures of the one under the cursor."""

    NAME = "kernels"
    KEY = "3"
    TITLE = "Kernels"
    KEEPS_UP = True
    BY_RANK = True
    EMPTY_IN_LOGS = "a training log says nothing of kernels: record the job (profkit run --kernels)"

    DEFAULT_CSS = """
    KernelsScreen #frame-view Static { padding: 0 1; height: auto; }
    KernelsScreen #kernel { padding: 1 1 0 1; max-height: 7; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "calls", "calls")]

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(
            id="kernels",
            empty="no kernels were captured; profkit run --kernels 20:23 -- COMMAND captures them",
        )
        yield Static(id="kernel")

    build = staticmethod(_kernels_and_devices)

    def show(self, view: KernelsView) -> None:
        """Show the columns for which there is room; all columns are exported."""
        self.query_one("#summary", Static).update(lines(summary_lines(view, self.palette)))
        columns = columns_of(Table(kernel_columns(view.noun), view.groups, only_known=True))
        shown, room = columns[:1], self.size.width - MIN_NAME_WIDTH
        for column in columns[1:]:
            room -= column.natural_width(range(min(MEASURED_ROWS, len(view.groups)))) + GAP
            if room < 0:
                break
            shown.append(column)
        self.table.show_rows(
            shown,
            keys=[(group.name, group.category) for group in view.groups],
            exported=columns,
        )
        if not self.table.sort_title and view.groups:
            self.table.sort_by("share", descending=True)
        self.on_virtual_table_moved()

    def on_virtual_table_moved(self) -> None:
        """Show the figures of the kernel under the cursor."""
        row = self.table.row
        kernel = self.query_one("#kernel", Static)
        if self.view is None or row is None or row >= len(self.view.groups):
            kernel.update("")
        else:
            kernel.update(lines(kernel_lines(self.view.groups[row])))

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Show the kernel's longest call on the timeline."""
        if self.view is not None:
            group = self.view.groups[message.row]
            call = group.longest
            place = Place(rank=call.rank, row=call.row, kernel=group.name, category=group.category)
            self.go("timeline", place)

    def action_calls(self) -> None:
        """List the calls of the kernel under the cursor."""
        row = self.table.row
        if self.view is not None and row is not None:
            self.app.push_screen(CallsScreen(self.view.groups[row], self.rank))

    def look_at(self, place: Place) -> None:
        if self.view is None:
            return
        for group in self.view.groups:
            if group.name == place.kernel:
                self.table.select((group.name, group.category))
                return
        if place.category is not None:
            self.action_filter(place.category)


class CallsScreen(RunScreen[tuple[KernelInstance, ...]]):
    """The longest calls of one kernel; Enter shows one on the timeline."""

    TITLE = "Calls"
    KEY = ""
    BY_RANK = True

    def __init__(self, group: KernelGroup, rank: int | None) -> None:
        super().__init__(Place(rank=rank))
        self._group = group
        self.build = lambda source: calls_of(
            source.trace, group.name, group.category, source.ceilings, source.rank
        )
        name = f"calls of {group.category} {group.name}"  # each kernel has a view of its own
        self.NAME = name  # type: ignore[misc]  # a class variable in all other screens

    def show(self, view: tuple[KernelInstance, ...]) -> None:
        self.table.show_rows(columns_of(Table(CALLS, view, only_known=True)))
        words = f"the longest calls of {self._group.name}"
        if len(view) == self._group.calls:
            words = f"the {plural(len(view), 'call')} of {self._group.name}"
        self.tell(words)

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Show the call on the timeline."""
        if self.view is not None:
            call = self.view[message.row]
            end_ns = call.start_ns + call.duration_ns
            place = Place(call.rank, call.step, call.start_ns, end_ns=end_ns, row=call.row)
            self.go("timeline", place)


SCREEN = KernelsScreen
