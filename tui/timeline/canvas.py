"""The widget of the timeline: draws a view of it, and reports what the mouse does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.style import Style
from textual import events, on
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from profkit.analysis.timeline.lanes import Group
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.view import READING, Row, TimelineView
from profkit.frame.estimate import Ints
from profkit.text import duration
from profkit.tui.timeline.painted import Look, Painted, filled, letters_for, strip
from profkit.tui.timeline.row_paint import counter_cells, counter_words, row_cells
from profkit.tui.timeline.rulers import step_ruler, time_ruler
from profkit.tui.widgets.draw import fit

RULERS: Final = 2
FOOT: Final = 2
"""Lines below the rows: what the cursor is on, and the legend."""

MAX_ROW_HEIGHT: Final = 3
"""The lines of a row if there is room; the last one is empty."""

LINES_PER_COUNTER: Final = 4
"""Counters take at most one of this many lines."""

NARROW_LABELS, WIDE_LABELS, WIDE_SCREEN = 15, 24, 100

_WITHOUT_DEVICE: Final = re.compile(r"^\S+ ((?:stream|thread) -?\d+)$")


class Canvas(Widget, can_focus=True):
    """Rulers, rows and counters, and below them what the cursor is on."""

    DEFAULT_CSS = """
    Canvas { height: 1fr; background: $background; }
    """

    @dataclass
    class Pointed(Message):
        """A cell was clicked, or the wheel was turned over a column.

        `row` is the clicked place in the view, or `None` for the wheel and outside all rows. `by`
        is the turn of the wheel, which is `sideways` with Shift or a second wheel.
        """

        column: int
        row: int | None = None
        by: int = 0
        sideways: bool = False

    class Resized(Message):
        """The number of cells that fit has changed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.view: TimelineView | None = None
        self.column = 0
        self.row = 0
        self.words = ""
        """The words about the cell under the cursor."""
        self._look: Look | None = None
        self._skip = 0
        """The number of rows above the first one that is drawn."""
        self._row_height = 1
        """The number of lines of each row."""
        self._lines: list[Strip] = []
        self._ground = Style.null()
        """The style of the widget when the lines were drawn."""
        self._widths: Ints = np.empty(0, dtype=np.int64)
        """The ns that each cell covers."""

    @property
    def label_width(self) -> int:
        """The number of cells for the labels of rows."""
        return WIDE_LABELS if self.size.width >= WIDE_SCREEN else NARROW_LABELS

    @property
    def room(self) -> int:
        """The number of lines for rows, next to as many counters as there is room for."""
        counters = 0
        if self.view is not None:
            counters = min(len(self.view.counters), self.size.height // LINES_PER_COUNTER)
        return max(1, self.size.height - RULERS - FOOT - counters)

    def draw(self, view: TimelineView, look: Look, *, column: int, row: int, words: str) -> None:
        """Show a view with the cursor on a cell, and `words` about what the cursor is on."""
        self.view, self._look = view, look
        self.column, self.row, self.words = column, row, words
        self._row_height = max(1, min(MAX_ROW_HEIGHT, self.room // max(1, len(view.rows))))
        visible = self.room // self._row_height
        self._ground = self.rich_style
        self._widths = np.diff(view.window.borders)
        self._skip = min(max(self._skip, row - visible + 1), row, max(0, len(view.rows) - visible))
        self._lines = self._draw_lines(view, look)
        self.refresh()

    def notify_style_update(self) -> None:
        """Draw again on the new ground: a theme's colours change after the theme's name."""
        super().notify_style_update()
        if self.view is not None and self._look is not None and self.rich_style != self._ground:
            self._ground = self.rich_style
            self._lines = self._draw_lines(self.view, self._look)

    def on_resize(self, event: events.Resize) -> None:
        self.post_message(self.Resized())

    def render_line(self, y: int) -> Strip:
        if y < len(self._lines):
            return self._lines[y]
        return Strip.blank(self.size.width, self.rich_style)

    def _draw_lines(self, view: TimelineView, look: Look) -> list[Strip]:
        """Return all lines: rulers, rows, counters, words about the cursor, and the legend."""
        dim = look.palette.style("dim")
        steps = step_ruler(view.steps, view.window.columns, look)
        for change in view.changes:
            steps[change.column] = (look.char("◆", "*"), look.palette.style("bad"))
        if self.column < len(steps):
            steps[self.column] = (look.char("▼", "v"), look.palette.style("accent"))
        title = ""
        if view.steps_of is not None:
            title = f"step of r{view.steps_of}"
        scale = f"{duration(view.window.cell_ns)} per cell"
        lines = [
            self._line(title, dim, steps, look),
            self._line(scale, dim, time_ruler(view.window, look), look),
        ]
        for place in range(self._skip, len(view.rows)):
            if len(lines) < RULERS + self.room:
                lines += self._row_lines(place, view, look)
        del lines[RULERS + self.room :]
        missing = RULERS + self.room - len(lines)
        lines += [Strip.blank(self.size.width, self._ground)] * missing
        for counter in view.counters[: self.size.height // LINES_PER_COUNTER]:
            name, value = counter_words(counter, self.column)
            if counter.device and self.label_width == WIDE_LABELS:
                name = f"{counter.device} {name}"
            name_width = max(1, self.label_width - len(value) - 2)
            label = fit(f" {name}", name_width, plain=look.plain) + f" {value}"
            lines.append(self._line(label, dim, counter_cells(counter, look), look))
        words = fit(f" {self.words}", self.size.width, plain=look.plain)
        for cells in ([(words, look.palette.style("title"))], self._legend(view, look)):
            lines.append(strip(cells, self.size.width, self._ground))
        return lines

    def _line(self, label: str, style: Style, cells: list[Painted], look: Look) -> Strip:
        """Return a label and cells as one line."""
        named = fit(label, self.label_width - 1, plain=look.plain) + " "
        return strip([(named, style), *cells], self.size.width, self._ground)

    def _row_lines(self, place: int, view: TimelineView, look: Look) -> list[Strip]:
        """Return the lines of a row: its cells with names, the same without, and a blank."""
        row = view.rows[place]
        here = place == self.row
        style, pointer = look.palette.style("title"), " "
        if here:
            style, pointer = look.palette.style("marked"), look.char("▶", ">")
        elif row.group is Group.REGIONS:
            style = look.palette.style("dim")
        label = row.label
        if self.label_width == NARROW_LABELS:
            label = _WITHOUT_DEVICE.sub(r"\1", label)
        rank = f"r{row.rank}"
        if place and view.rows[place - 1].rank == row.rank:
            rank = "  " + look.char("·", "-")
        cells = row_cells(row, self._widths, look)
        if row.note:
            note = f" {row.note}"
            if row.note == READING:
                note += look.char(" …", " ...")
            text = fit(note, len(cells), plain=look.plain)
            cells = []
            for char in text:
                cells.append((char, look.palette.style("dim")))
        self._draw_cursor(cells, row, look, here=here)
        lines = [self._line(f"{pointer}{rank} {label}", style, cells, look)]
        if self._row_height > 1:
            cells = row_cells(row, self._widths, look, names=False)
            self._draw_cursor(cells, row, look, here=False)
            lines += [self._line("", style, cells, look)] * (self._row_height - 2)
            lines.append(self._line("", style, [], look))
        return lines

    def _draw_cursor(self, cells: list[Painted], row: Row, look: Look, *, here: bool) -> None:
        """Draw the cursor's line through a row; it is bold in the row that the cursor is on."""
        if self.column >= len(cells):
            return
        char, style = cells[self.column]
        if here and char == " " and not style.bgcolor:
            style = look.palette.style("accent")
        elif here:
            style += look.palette.style("cursor")
        elif row.note or row.kinds[self.column] == NONE:
            style = look.palette.style("dim")
        else:
            return
        if not char.strip():
            char = look.char("┃", "|") if here else look.char("│", ":")
        cells[self.column] = (char, style)

    def _legend(self, view: TimelineView, look: Look) -> list[Painted]:
        """Return the letter and the name of each kind in view, those of the cursor's row first."""
        found: dict[str, str] = {}
        for _, row in sorted(enumerate(view.rows), key=lambda each: each[0] != self.row):
            letters = letters_for(row.kind_names)
            for kind in dict.fromkeys(row.kinds.tolist()):
                if kind != NONE:
                    name = row.kind_names[kind]
                    found.setdefault(name, letters[name])
        cells: list[Painted] = []
        for kind_name, letter in found.items():
            cells.append((f" {letter.upper()} ", filled(look.kind(kind_name))))
            cells.append((f" {kind_name}  ", look.palette.style("dim")))
        return cells

    @on(events.Click)
    @on(events.MouseScrollUp)
    @on(events.MouseScrollDown)
    @on(events.MouseScrollLeft)
    @on(events.MouseScrollRight)
    def report_mouse(self, event: events.MouseEvent) -> None:
        """Report a click, or a turn of the wheel, which scrolls nothing by itself."""
        if self.view is None:
            return
        column = min(max(0, event.x - self.label_width), self.view.window.columns - 1)
        if isinstance(event, events.Click):
            row = (event.y - RULERS) // self._row_height + self._skip
            is_row = RULERS <= event.y < RULERS + self.room and row < len(self.view.rows)
            self.post_message(self.Pointed(column, row if is_row else None))
            return
        event.stop()
        by = 1
        if isinstance(event, events.MouseScrollUp | events.MouseScrollLeft):
            by = -1
        is_sideways = isinstance(event, events.MouseScrollLeft | events.MouseScrollRight)
        self.post_message(self.Pointed(column, by=by, sideways=is_sideways or event.shift))
