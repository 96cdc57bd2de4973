"""The widget of the timeline: draws a view of it, and says what was clicked."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from profkit.analysis.estimate import Ints
from profkit.analysis.timeline.lanes import Group
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.view import READING, CounterRow, Row, TimelineView
from profkit.text import duration
from profkit.tui.timeline.draw import (
    Look,
    Painted,
    counter_cells,
    counter_words,
    legend,
    letters_for,
    named_cells,
    row_cells,
    step_ruler,
    strip,
    time_ruler,
)
from profkit.tui.widgets.draw import fit

RULERS: Final = 2
FOOT: Final = 2
"""What the cursor is on, and the legend."""

TALLEST_ROW: Final = 3
"""Lines that a row takes where there is room, the last of them empty."""

COUNTERS_SHARE: Final = 4
"""Counters take at most one line in so many."""

NARROW_LABELS, WIDE_LABELS, WIDE_SCREEN = 15, 24, 100


_WITHOUT_DEVICE: Final = re.compile(r"^\S+ ((?:stream|thread) -?\d+)$")


class Canvas(Widget, can_focus=True):
    """Rulers, rows, counters, and below them what the cursor is on."""

    DEFAULT_CSS = """
    Canvas { height: 1fr; background: $background; }
    """

    class Clicked(Message):
        """A cell was clicked: the column, and the row's place in the view or `None` beside all rows."""

        def __init__(self, column: int, row: int | None) -> None:
            super().__init__()
            self.column = column
            self.row = row

    class Wheeled(Message):
        """The wheel was turned above a column; `sideways` with Shift or a second wheel."""

        def __init__(self, column: int, by: int, *, sideways: bool) -> None:
            super().__init__()
            self.column = column
            self.by = by
            self.sideways = sideways

    class Resized(Message):
        """There is room for another number of cells."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.view: TimelineView | None = None
        self.column = 0
        self.row = 0
        self.words = ""
        self._look: Look | None = None
        self._skip = 0
        self._lines: list[Strip] = []
        self._ground = Style.null()
        self._widths: Ints = np.empty(0, dtype=np.int64)

    @property
    def label_width(self) -> int:
        return WIDE_LABELS if self.size.width >= WIDE_SCREEN else NARROW_LABELS

    @property
    def columns(self) -> int:
        """How many cells there is room for."""
        return max(1, self.size.width - self.label_width)

    @property
    def room(self) -> int:
        """Lines for rows, all of them one line high."""
        return max(1, self.size.height - RULERS - FOOT - len(self._counters))

    @property
    def _counters(self) -> tuple[CounterRow, ...]:
        return self.view.counters[: self.size.height // COUNTERS_SHARE] if self.view else ()

    @property
    def _row_height(self) -> int:
        rows = len(self.view.rows) if self.view else 0
        return max(1, min(TALLEST_ROW, self.room // max(1, rows)))

    def draw(self, view: TimelineView, look: Look, *, column: int, row: int, words: str) -> None:
        """Show this, with the cursor there and `words` about what it is on."""
        self.view, self._look = view, look
        self.column, self.row, self.words = column, row, words
        visible = self.room // self._row_height
        self._ground = self.rich_style
        self._widths = np.diff(view.window.borders)
        self._skip = min(max(self._skip, row - visible + 1), row, max(0, len(view.rows) - visible))
        self._lines = self._draw_lines()
        self.refresh()

    def notify_style_update(self) -> None:
        """A theme's colours come after the theme's name: what was drawn before them has the ground of the theme before."""
        super().notify_style_update()
        if self.view is not None and self.rich_style != self._ground:
            self._ground = self.rich_style
            self._lines = self._draw_lines()

    def on_resize(self, event: events.Resize) -> None:
        self.post_message(self.Resized())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return container.height

    def render_line(self, y: int) -> Strip:
        return (
            self._lines[y]
            if y < len(self._lines)
            else Strip.blank(self.size.width, self.rich_style)
        )

    def _draw_lines(self) -> list[Strip]:
        view, look = self.view, self._look
        if view is None or look is None:
            return []
        rulers = [
            self._line(
                f"step of r{view.steps_of}" if view.steps_of is not None else "",
                look.role("dim"),
                self._marked(step_ruler(view.steps, view.window.columns, look), look),
            ),
            self._line(
                f"{duration(view.window.cell_ns)} a cell",
                look.role("dim"),
                time_ruler(view.window, look),
            ),
        ]
        rows = [
            line
            for place, row in enumerate(view.rows)
            if place >= self._skip
            for line in self._row_lines(place, row, look)
        ][: self.room]
        counters = [self._counter_line(counter, look) for counter in self._counters]
        blank = Strip.blank(self.size.width, self._ground)
        return [
            *rulers,
            *rows,
            *[blank] * (self.room - len(rows)),
            *counters,
            *self._foot(view, look),
        ]

    def _marked(self, cells: list[Painted], look: Look) -> list[Painted]:
        """The ruler with the cursor's column on it."""
        if self.column < len(cells):
            cells[self.column] = (look.char("▼", "v"), look.role("accent"))
        return cells

    def _row_lines(self, place: int, row: Row, look: Look) -> list[Strip]:
        here = place == self.row
        cells = named_cells(row, self._widths, look)
        if row.note:
            note = fit(
                f" {row.note}" + (look.char(" …", " ...") if row.note == READING else ""),
                len(cells),
                plain=look.plain,
            )
            cells = [(char, look.role("dim")) for char in note]
        style = (
            look.role("marked")
            if here
            else look.role("title" if row.group is not Group.REGIONS else "dim")
        )
        first = self._line(
            self._row_label(place, row, look), style, self._crossed(cells, row, look, here=here)
        )
        if self._row_height == 1:
            return [first]
        rest = self._line(
            "", style, self._crossed(row_cells(row, self._widths, look), row, look, here=False)
        )
        return [first, *[rest] * (self._row_height - 2), self._line("", style, [])]

    def _row_label(self, place: int, row: Row, look: Look) -> str:
        pointer = look.char("▶", ">") if place == self.row else " "
        first = not place or (self.view is not None and self.view.rows[place - 1].rank != row.rank)
        label = (
            _WITHOUT_DEVICE.sub(r"\1", row.label)
            if self.label_width == NARROW_LABELS
            else row.label
        )
        return (
            f"{pointer}r{row.rank} {label}"
            if first
            else f"{pointer}  {look.char('·', '-')} {label}"
        )

    def _crossed(self, cells: list[Painted], row: Row, look: Look, *, here: bool) -> list[Painted]:
        """The cells with the cursor's line through them."""
        if self.column < len(cells):
            char, style = cells[self.column]
            if here and char == " " and not style.bgcolor:
                cells[self.column] = (look.char("┃", "|"), look.role("accent"))
            elif here:
                cells[self.column] = (
                    char if char.strip() else look.char("┃", "|"),
                    style + look.role("cursor"),
                )
            elif row.note or row.kinds[self.column] == NONE:
                cells[self.column] = (
                    look.char("│", ":") if not char.strip() else char,
                    look.role("dim"),
                )
        return cells

    def _counter_line(self, row: CounterRow, look: Look) -> Strip:
        counter, value = counter_words(row, self.column)
        device = f"{row.device} " if row.device and self.label_width == WIDE_LABELS else ""
        name = fit(
            f" {device}{counter}", max(1, self.label_width - len(value) - 2), plain=look.plain
        )
        return self._line(f"{name} {value}", look.role("dim"), counter_cells(row, look))

    def _foot(self, view: TimelineView, look: Look) -> list[Strip]:
        ground = self._ground
        words = [(fit(f" {self.words}", self.size.width, plain=look.plain), look.role("title"))]
        return [
            strip(words, self.size.width, ground),
            strip(self._legend(view, look), self.size.width, ground),
        ]

    def _legend(self, view: TimelineView, look: Look) -> list[Painted]:
        """The kinds of the cursor's row that are in view, then those of the other rows."""
        rows = sorted(enumerate(view.rows), key=lambda each: each[0] != self.row)
        found: dict[str, str] = {}
        for _, row in rows:
            letters = letters_for(row.kind_names)
            for kind in dict.fromkeys(row.kinds.tolist()):
                if kind != NONE:
                    found.setdefault(row.kind_names[kind], letters[row.kind_names[kind]])
        return list(legend(found, found, look))

    def _line(self, label: str, style: Style, cells: list[Painted]) -> Strip:
        look = self._look
        named = fit(label, self.label_width - 1, plain=bool(look and look.plain)) + " "
        return strip([(named, style), *cells], self.size.width, self._ground)

    def _cell_at(self, event: events.MouseEvent) -> tuple[int, int | None]:
        place = (
            (event.y - RULERS) // self._row_height + self._skip
            if RULERS <= event.y < RULERS + self.room
            else None
        )
        inside = place is not None and self.view is not None and place < len(self.view.rows)
        return min(max(0, event.x - self.label_width), self.columns - 1), place if inside else None

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(*self._cell_at(event)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        self._wheel(event, -1, sideways=True)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        self._wheel(event, 1, sideways=True)

    def _wheel(self, event: events.MouseEvent, by: int, *, sideways: bool = False) -> None:
        event.stop()
        self.post_message(
            self.Wheeled(self._cell_at(event)[0], by, sideways=sideways or event.shift)
        )
