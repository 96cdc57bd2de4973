"""Code: the lines that the training thread and the loader's workers ran, by phase."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from profkit.analysis.views.code import CodeScreenView, build_code_view
from profkit.report.code_sections import code_screen
from profkit.show import json as show_json
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets.flame_draw import flame_lines
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.run_draw import phase_of
from profkit.tui.widgets.table import VirtualTable


class CodeScreen(RunScreen[CodeScreenView]):
    """A table of lines, and the flame graph of the phase under the cursor."""

    NAME = "code"
    KEY = "9"
    TITLE = "Code"
    KEEPS_UP = True
    BY_RANK = True

    DEFAULT_CSS = """
    CodeScreen #summary { padding: 0 1; height: auto; }
    CodeScreen #lines { height: 1fr; }
    CodeScreen #flame_title { padding: 1 1 0 1; color: $text-muted; height: auto; }
    CodeScreen #flame { height: 50%; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "phase(1)", "next phase"),
        Binding("P", "phase(-1)", "previous phase", show=False),
    ]

    _shown: str | None = None
    """The phase whose flame graph is shown."""

    def compose_view(self) -> ComposeResult:
        yield Lines(id="summary")
        yield VirtualTable(id="lines", empty="no phase has enough samples to name a line")
        yield Static(id="flame_title")
        with VerticalScroll(id="flame", can_focus=False):
            yield Lines(id="boxes")

    build = staticmethod(lambda source: build_code_view(source.trace, source.rank))
    to_json = staticmethod(lambda view: show_json.document(code_screen(view)))

    def show(self, view: CodeScreenView) -> None:
        (section,) = code_screen(view).sections
        self.show_notes("summary", section)
        keys = [(row.phase, row.line.place) for row in view.rows]
        self.show_rows_of("lines", section, keys)
        self._shown = None
        self.on_virtual_table_moved()

    def on_virtual_table_moved(self) -> None:
        """Show the flame graph of the phase under the cursor."""
        phase = self._phase()
        flame = None
        for each in self.view.flames if self.view is not None else ():
            if each.phase == phase and each.boxes:
                flame = each
        for name in ("#flame_title", "#flame"):
            self.query_one(name).display = flame is not None
        if flame is None or phase == self._shown:
            return
        self._shown = phase
        words = f"stacks of {flame.phase}, callers above; as wide as their time"
        self.query_one("#flame_title", Static).update(words)
        self.query_one("#boxes", Lines).show(
            lambda width: flame_lines(flame, self.palette, width, plain=self.plain)
        )

    def on_virtual_table_opened(self) -> None:
        """Show the phase of the line under the cursor on the timeline."""
        phase = self._phase()
        if phase is not None:
            self.go("timeline", Place(rank=self.rank, phase=phase))

    def action_phase(self, by: int) -> None:
        """Move the cursor to the first line of the next phase, in a circle."""
        phases = self._phases()
        if phases:
            here = self._phase()
            place = phases.index(here) + by if here in phases else 0
            self._select(phases[place % len(phases)])

    def look_at(self, place: Place) -> None:
        if place.phase is None:
            return
        phase = phase_of(place.phase) or place.phase
        if phase in self._phases():
            self._select(phase)
        elif self.view is not None and not self.view.why_empty:
            self.tell(f"no line of {phase} is named: too few samples, or none")

    def _phase(self) -> str | None:
        row = self.table.row
        if self.view is None or row is None or row >= len(self.view.rows):
            return None
        return self.view.rows[row].phase

    def _phases(self) -> list[str]:
        rows = self.view.rows if self.view is not None else ()
        return list(dict.fromkeys(row.phase for row in rows))

    def _select(self, phase: str) -> None:
        for row in self.view.rows if self.view is not None else ():
            if row.phase == phase:
                self.table.select((row.phase, row.line.place))
                return


SCREEN = CodeScreen
"""The screen of this file."""
