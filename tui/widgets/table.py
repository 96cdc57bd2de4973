"""A table of any length that draws and formats only the rows in view.

A screen passes columns of values and how to show a value. Sorting and filtering change the order in
which rows are shown; the values stay where they are. Cells are made safe when they are drawn, and
are never read as markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from rich.segment import Segment
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from profkit.frame.estimate import Ints
from profkit.tui.themes import PALETTES, Palette
from profkit.tui.widgets.columns import GAP, MEASURED_ROWS, Column, column_widths
from profkit.tui.widgets.draw import fit
from profkit.tui.widgets.row_order import compile_filter, sort_rows
from profkit.tui.widgets.table_paint import TablePainter

MAX_ROWS: Final = 10**9
"""No table has more rows; `Home` and `End` move by this many."""


class VirtualTable(ScrollView, can_focus=True):
    """Rows in columns, with a cursor, a sort order, a filter and marks."""

    DEFAULT_CSS = """
    VirtualTable { height: 1fr; background: $background; overflow-x: auto;
        scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", f"step({-MAX_ROWS})", "first row", show=False),
        Binding("end,G", f"step({MAX_ROWS})", "last row", show=False),
        Binding("left,h", "scroll_left", "scroll left", show=False),
        Binding("right,l", "scroll_right", "scroll right", show=False),
        Binding("enter", "open", "open", key_display="Enter"),
    ]

    cursor: reactive[int] = reactive(0)
    """The position of the cursor among the rows that are shown."""

    @dataclass
    class TableMessage(Message):
        """Is about a row of a table: `row` is its index in the columns' values."""

        table: VirtualTable

    @dataclass
    class Opened(TableMessage):
        """Enter was pressed on a row, or the row was double-clicked."""

        row: int

    @dataclass
    class Moved(TableMessage):
        """The cursor moved to a row; `row` is `None` if the table shows none."""

        row: int | None

    def __init__(self, *, empty: str = "nothing to show", **options: Any) -> None:
        super().__init__(**options)
        self.columns: tuple[Column, ...] = ()
        self.exported: tuple[Column, ...] = ()
        """The columns that are copied and exported with all rows."""
        self.titles: list[str] = []
        """The titles that the table can be sorted by."""
        self.count = 0
        """The number of rows, with those that the filter hides."""
        self.empty = empty
        self.marked: set[Hashable] = set()
        self.sort_title = ""
        self.descending = False
        self.pattern = ""
        self.order: Ints = np.empty(0, dtype=np.int64)
        """The rows that are shown, in their order, as indices into the columns' values."""
        self._keys: Sequence[Any] = range(0)
        self._sorted: Ints = self.order
        self._widths: tuple[int, ...] = ()
        self._palette = PALETTES["dark"]
        self._plain = False

    def set_look(self, palette: Palette, *, plain: bool) -> None:
        self._palette, self._plain = palette, plain
        self.refresh()

    def show_rows(
        self,
        columns: Sequence[Column],
        *,
        keys: Sequence[Any] | None = None,
        exported: Sequence[Column] | None = None,
    ) -> None:
        """Show new columns; the sort order, the filter and the row under the cursor stay."""
        kept = self.key
        self.columns = tuple(columns)
        self.exported = self.columns if exported is None else tuple(exported)
        self.titles = [column.title for column in columns if column.title]
        self.count = len(columns[0].values) if columns else 0
        self._keys = range(self.count) if keys is None else keys
        if self.sort_title not in self.titles:
            self.sort_title = ""
        self._sort()
        self._filter(kept)

    @property
    def row(self) -> int | None:
        """The row under the cursor, as an index into the columns' values."""
        if self.cursor >= len(self.order):
            return None
        return int(self.order[self.cursor])

    @property
    def key(self) -> Any:
        """The key of the row under the cursor."""
        return None if self.row is None else self._keys[self.row]

    def sort_by(self, title: str, *, descending: bool | None = None) -> None:
        """Sort by a column, or reverse the order if the table is sorted by it already.

        Without a given direction, figures begin with the largest.
        """
        kept = self.key
        again = title == self.sort_title
        self.sort_title = title
        if descending is None and again:
            descending = not self.descending
        elif descending is None:
            descending = any(column.right for column in self.columns if column.title == title)
        self.descending = descending
        self._sort()
        self._filter(kept)

    def _sort(self) -> None:
        self._sorted = np.arange(self.count)
        for column in self.columns:
            if self.sort_title and column.title == self.sort_title:
                self._sorted = sort_rows(column, descending=self.descending)
                return

    def filter_by(self, pattern: str) -> None:
        """Show the rows that match; an invalid pattern raises a `UsageError`."""
        compile_filter(pattern)
        kept = self.key
        self.pattern = pattern
        self._filter(kept)

    def _filter(self, kept: Hashable) -> None:
        """Update the rows that are shown, and put the cursor back on the row of this key."""
        self.order = self._sorted
        if self.pattern:
            matches = compile_filter(self.pattern)
            searched = [column for column in self.columns if column.searched]
            found: list[int] = []
            for row in self._sorted.tolist():
                if any(matches(column.text(row)) for column in searched):
                    found.append(row)
            self.order = np.array(found, dtype=np.int64)
        if kept is None or not self.select(kept):
            self.action_step(0)
        self.on_resize()
        self.refresh()
        self.post_message(self.Moved(self, self.row))

    def select(self, key: Any) -> bool:
        """Put the cursor on the row of a key; return False if that row is not shown."""
        if isinstance(self._keys, range):
            places = np.flatnonzero(self.order == key)
            if len(places):
                self.cursor = int(places[0])
            return len(places) > 0
        for place, row in enumerate(self.order.tolist()):
            if self._keys[row] == key:
                self.cursor = place
                return True
        return False

    def on_resize(self) -> None:
        """Give each column the width of its rows; the stretching one takes what is left."""
        measured = self.order[:MEASURED_ROWS].tolist()
        widths = column_widths(self.columns, measured, self.scrollable_content_region.width)
        self._widths = tuple(widths)
        self.virtual_size = Size(sum(widths) + GAP * len(widths) + 1, len(self.order) + 1)
        self._scroll_to_cursor()

    def watch_cursor(self, before: int, now: int) -> None:
        """Show the row under the cursor, also if a widget around the table scrolls."""
        self._scroll_to_cursor()
        if before == now:
            return
        self.refresh()
        self.post_message(self.Moved(self, self.row))
        line = 1 + self.cursor - round(self.scroll_y)
        inner: Widget = self
        for outer in self.ancestors:
            if not isinstance(outer, Widget) or not self.has_focus:
                return
            line += inner.virtual_region.y
            if outer.max_scroll_y > 0:
                outer.scroll_to_region(Region(0, line, 1, 1), animate=False)
                return
            inner = outer

    def _scroll_to_cursor(self) -> None:
        """Scroll the table so that the cursor is in view."""
        height = max(1, self.scrollable_content_region.height - 1)
        top = round(self.scroll_y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def action_move(self, by: int) -> None:
        if self.max_scroll_y == 0 and not 0 <= self.cursor + by < len(self.order):
            raise SkipAction  # the widget around the table scrolls
        self.action_step(by)

    def action_step(self, by: int) -> None:
        """Move the cursor by this many rows, at most to the first or last one."""
        self.cursor = max(0, min(self.cursor + by, len(self.order) - 1))

    def action_page(self, by: int) -> None:
        if self.max_scroll_y == 0:
            raise SkipAction
        self.action_step(by * max(1, self.scrollable_content_region.height - 2))

    def action_open(self) -> None:
        if self.row is not None:
            self.post_message(self.Opened(self, self.row))

    def on_click(self, event: events.Click) -> None:
        """Sort by a heading, go to a row, or open a row that is clicked twice."""
        if event.y == 0:
            begin = 1 - round(self.scroll_x)
            for column, width in zip(self.columns, self._widths, strict=True):
                if begin <= event.x < begin + width and column.title:
                    self.sort_by(column.title)
                begin += width + GAP
            return
        place = event.y - 1 + round(self.scroll_y)
        if place < len(self.order):
            self.cursor = place
            if event.chain > 1:
                self.action_open()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.scrollable_content_region.width
        place = y - 1 + round(self.scroll_y)
        painter = TablePainter(self._palette, self._plain, base, self.columns, self._widths)
        if y == 0:
            strip = painter.heading(self.sort_title, descending=self.descending)
        elif not len(self.order):
            words = f"nothing matches '{self.pattern}'" if self.pattern else self.empty
            lines = ["", *textwrap.wrap(words, max(1, width - 2))]
            text = fit(lines[y] if y < len(lines) else "", width - 1, plain=self._plain)
            return Strip([Segment(f" {text}", base)])
        elif place >= len(self.order):
            return Strip.blank(width, base)
        else:
            row = int(self.order[place])
            lit = place == self.cursor
            marked = bool(self.marked) and self._keys[row] in self.marked
            strip = painter.row(row, under_cursor=lit, has_focus=self.has_focus, marked=marked)
            if lit and self.has_focus:
                base += self._palette.style("cursor")
        left = round(self.scroll_x)
        return painter.window(strip.extend_cell_length(left + width, base), left, width)
