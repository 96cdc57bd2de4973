"""A table of any length: it draws the rows that are in view, and formats nothing else.

A screen hands it columns of values and how to show one. Sorting and filtering make a new order of the rows; the rows
themselves stay where they are. Cells are made safe here, and are never markup.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from profkit.analysis.estimate import Ints
from profkit.errors import UsageError
from profkit.tui.themes import Palette
from profkit.tui.widgets.draw import fit

NARROWEST: Final = 28
"""So much of its own width is left to the column that gives way; then the table scrolls sideways."""

_MEASURED_ROWS: Final = 200
"""A column is as wide as its widest cell among so many rows: to look at a million would take a second."""

_GAP: Final = 2


@dataclass(frozen=True)
class Column:
    """One column: its values, how a value is shown, and the role that a value's text has."""

    title: str
    values: Sequence[Any] | npt.NDArray[Any]
    show: Callable[[Any], str] = str
    right: bool = False
    role: Callable[[Any], str] | None = None
    stretches: bool = False
    """Whether it gives way where there is little room."""
    searched: bool = True
    """Whether the filter looks into it."""
    widest: int = 60

    def text(self, row: int) -> str:
        value = self.values[row]
        return "-" if value is None else self.show(value)

    def natural_width(self, rows: Iterable[int]) -> int:
        """The cells that it takes to show these rows, and its title with an arrow."""
        return min(
            self.widest,
            max(
                [
                    cell_len(self.title) + 2,
                    *(cell_len(self.text(row)[: self.widest + 1]) for row in rows),
                ]
            ),
        )

    def ascending(self) -> Ints:
        """The rows from the smallest value to the largest; those without a value stand last."""
        if getattr(self.values, "dtype", None) is not None:
            return np.argsort(np.asarray(self.values), kind="stable")
        known = [row for row, value in enumerate(self.values) if not _missing(value)]
        unknown = [row for row, value in enumerate(self.values) if _missing(value)]
        return np.array(
            [*sorted(known, key=lambda row: _sortable(self.values[row])), *unknown], dtype=np.int64
        )


def fit_columns(columns: Sequence[Column], room: int, least: int) -> list[Column]:
    """The first column, and of the others the first ones, as many as leave it `least` cells of the room."""
    kept, room = list(columns[:1]), room - least
    for column in columns[1:]:
        room -= column.natural_width(range(min(_MEASURED_ROWS, len(column.values)))) + _GAP
        if room < 0:
            break
        kept.append(column)
    return kept


def _missing(value: Any) -> bool:
    return value is None or (
        isinstance(value, float) and math.isnan(value)
    )  # numpy's doubles are floats


def _sortable(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def compile_filter(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches: a substring without regard to case, or behind `re:` a regular expression."""
    if not pattern.startswith("re:"):
        wanted = pattern.casefold()
        return lambda text: wanted in text.casefold()
    try:
        found = re.compile(pattern.removeprefix("re:"), re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"not a regular expression: {error}") from None
    return lambda text: found.search(text) is not None


class VirtualTable(ScrollView, can_focus=True):
    """Rows in columns, with a cursor, a sort, a filter and marks."""

    DEFAULT_CSS = """
    VirtualTable { height: 1fr; background: $background; overflow-x: auto; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "a page up", show=False),
        Binding("pagedown", "page(1)", "a page down", show=False),
        Binding("home", "jump(0)", "the first row", show=False),
        Binding("end,G", "jump(-1)", "the last row", show=False),
        Binding("left,h", "scroll_left", "more to the left", show=False),
        Binding("right,l", "scroll_right", "more to the right", show=False),
        Binding("enter", "open", "open", key_display="Enter"),
    ]

    cursor: reactive[int] = reactive(0)
    """The place of the cursor among the rows in view order."""

    class Opened(Message):
        """Enter was pressed on a row, or it was clicked twice; `row` is its place in the values."""

        def __init__(self, table: VirtualTable, row: int) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> VirtualTable:
            return self.table

    class Moved(Message):
        """The cursor came to a row; `row` is its place in the values, or `None` where there is none."""

        def __init__(self, table: VirtualTable, row: int | None) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> VirtualTable:
            return self.table

    def __init__(self, *, empty: str = "nothing to show", **options: Any) -> None:
        super().__init__(**options)
        self.columns: tuple[Column, ...] = ()
        self.empty = empty
        self.marked: set[Hashable] = set()
        self.sort_title = ""
        self.descending = False
        self.pattern = ""
        self._keys: Sequence[Any] = range(0)
        self._order: Ints = np.empty(0, dtype=np.int64)
        self._sorted: Ints = self._order
        self._widths: tuple[int, ...] = ()
        self._palette: Palette | None = None
        self._plain = False

    def set_look(self, palette: Palette, *, plain: bool) -> None:
        self._palette, self._plain = palette, plain
        self.refresh()

    def show_rows(self, columns: Sequence[Column], *, keys: Sequence[Any] | None = None) -> None:
        """Show these columns in the order and filter that were chosen before; the cursor stays on the row of its key."""
        kept = self.key
        self.columns = tuple(columns)
        self._keys = keys if keys is not None else range(self.count)
        if self.sort_title not in {column.title for column in columns}:
            self.sort_title = ""
        self._sort()
        self._arrange(kept)

    @property
    def count(self) -> int:
        """How many rows there are, whether the filter shows them or not."""
        return len(self.columns[0].values) if self.columns else 0

    @property
    def order(self) -> Ints:
        """The rows that are shown, in their order, as places in the values."""
        return self._order

    @property
    def row(self) -> int | None:
        """The row under the cursor, as a place in the values."""
        return int(self._order[self.cursor]) if self.cursor < len(self._order) else None

    @property
    def key(self) -> Any:
        return None if self.row is None else self._keys[self.row]

    def texts(self, row: int) -> list[str]:
        """The cells of a row as they are shown, at full length."""
        return [column.text(row) for column in self.columns]

    def sort_by(self, title: str, *, descending: bool | None = None) -> None:
        """Sort by a column; the one that it is sorted by already turns round. Figures begin with the largest."""
        if descending is None:
            column = self._column(title)
            descending = (
                not self.descending
                if title == self.sort_title
                else column is not None and column.right
            )
        kept = self.key
        self.sort_title, self.descending = title, descending
        self._sort()
        self._arrange(kept)

    def filter_by(self, pattern: str) -> None:
        """Show the rows that match; a pattern that is none raises a `UsageError`."""
        compile_filter(pattern)
        kept = self.key
        self.pattern = pattern
        self._arrange(kept)

    def toggle_mark(self) -> None:
        if self.row is not None:
            self.marked ^= {self.key}
            self.refresh()

    def select(self, key: Any) -> bool:
        """Put the cursor on the row of a key; whether it is shown."""
        found = self._place_of(key)
        if found is not None:
            self.cursor = found
        return found is not None

    def _column(self, title: str) -> Column | None:
        return (
            next((column for column in self.columns if column.title == title), None)
            if title
            else None
        )

    def _sort(self) -> None:
        column = self._column(self.sort_title)
        if column is None:
            self._sorted = np.arange(self.count)
            return
        ascending = column.ascending()
        self._sorted = _reversed(ascending, column) if self.descending else ascending

    def _arrange(self, kept: Hashable) -> None:
        self._order = self._sorted if not self.pattern else self._matching()
        place = None if kept is None else self._place_of(kept)
        self.cursor = place if place is not None else max(0, min(self.cursor, len(self._order) - 1))
        self._measure()
        self._keep_in_view()
        self.refresh()
        self.post_message(self.Moved(self, self.row))

    def _matching(self) -> Ints:
        matches = compile_filter(self.pattern)
        searched = [column for column in self.columns if column.searched]
        return np.array(
            [
                row
                for row in self._sorted.tolist()
                if any(matches(column.text(row)) for column in searched)
            ],
            dtype=np.int64,
        )

    def _place_of(self, key: Hashable) -> int | None:
        if isinstance(self._keys, range):
            places = np.flatnonzero(self._order == key)
            return int(places[0]) if len(places) else None
        return next(
            (place for place, row in enumerate(self._order.tolist()) if self._keys[row] == key),
            None,
        )

    def _measure(self) -> None:
        """Widths that fit the rows that are looked at, and the room there is: the column that stretches gives way."""
        looked_at = self._order[:_MEASURED_ROWS].tolist()
        natural = [column.natural_width(looked_at) for column in self.columns]
        room = self.scrollable_content_region.width - sum(natural) - _GAP * len(natural) - 1
        for place, column in enumerate(self.columns):
            if column.stretches:
                natural[place] = max(min(natural[place], NARROWEST), natural[place] + min(0, room))
        self._widths = tuple(natural)
        self.virtual_size = Size(sum(natural) + _GAP * len(natural) + 1, len(self._order) + 1)

    def on_resize(self, event: events.Resize) -> None:
        self._measure()
        self._keep_in_view()

    def watch_cursor(self, before: int, now: int) -> None:
        self._keep_in_view()
        if before != now:
            self._keep_in_sight()
            self.refresh()
            self.post_message(self.Moved(self, self.row))

    def _keep_in_view(self) -> None:
        height = max(1, self.scrollable_content_region.height - 1)
        top = round(self.scroll_y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def _keep_in_sight(self) -> None:
        """The row under the cursor, where the table stands as a whole in something that scrolls."""
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

    def action_move(self, by: int) -> None:
        if self.max_scroll_y == 0 and not 0 <= self.cursor + by < len(self._order):
            raise SkipAction  # what the table stands in scrolls on
        self.step(by)

    def step(self, by: int) -> None:
        """Move the cursor by so many rows, as far as there are rows."""
        self.cursor = max(0, min(self.cursor + by, len(self._order) - 1))

    def action_page(self, by: int) -> None:
        if self.max_scroll_y == 0:
            raise SkipAction
        self.step(by * max(1, self.scrollable_content_region.height - 2))

    def action_jump(self, to: int) -> None:
        self.cursor = max(0, len(self._order) - 1) if to < 0 else 0

    def action_open(self) -> None:
        if self.row is not None:
            self.post_message(self.Opened(self, self.row))

    def on_click(self, event: events.Click) -> None:
        """A click on a heading sorts by it, on a row goes there, and a second one opens it."""
        if event.y == 0:
            title = self._title_at(event.x + round(self.scroll_x))
            if title:
                self.sort_by(title)
            return
        place = event.y - 1 + round(self.scroll_y)
        if place < len(self._order):
            self.cursor = place
            if event.chain > 1:
                self.action_open()

    def _title_at(self, x: int) -> str:
        at = 1
        for column, width in zip(self.columns, self._widths, strict=True):
            if at <= x < at + width:
                return column.title
            at += width + _GAP
        return ""

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.scrollable_content_region.width
        place = y - 1 + round(self.scroll_y)
        if y == 0:
            strip = Strip(self._heading(base))
        elif not self.columns or not len(self._order):
            message = self.empty if not self.pattern else f"nothing matches '{self.pattern}'"
            return Strip(
                [
                    Segment(
                        " " + fit(message, width - 1, plain=self._plain) if y == 1 else " " * width,
                        base,
                    )
                ]
            )
        elif place < len(self._order):
            strip = Strip(self._cells(int(self._order[place]), place == self.cursor, base))
            if place == self.cursor and self.has_focus:
                base += self._style("cursor")
        else:
            return Strip.blank(width, base)
        left = round(self.scroll_x)
        return strip.extend_cell_length(left + width, base).crop(left, left + width)

    def _heading(self, base: Style) -> list[Segment]:
        style = base + self._style("title") + Style(underline=not self._plain)
        segments = [Segment(" ", base)]
        for column, width in zip(self.columns, self._widths, strict=True):
            arrow = self._arrow() if column.title and column.title == self.sort_title else ""
            segments += [
                Segment(
                    fit(column.title + arrow, width, right=column.right, plain=self._plain), style
                ),
                Segment(" " * _GAP, base),
            ]
        return segments

    def _arrow(self) -> str:
        if self._plain:
            return " v" if self.descending else " ^"
        return " ▼" if self.descending else " ▲"

    def _cells(self, row: int, under_cursor: bool, base: Style) -> list[Segment]:
        marked = self._keys[row] in self.marked if self.marked else False
        line_style = base + (self._style("marked") if marked else Style.null())
        lit = under_cursor and self.has_focus
        if lit:
            line_style += self._style("cursor")
        segments = [
            Segment("*" if marked else ">" if under_cursor and self._plain else " ", line_style)
        ]
        for column, width in zip(self.columns, self._widths, strict=True):
            role = (
                None
                if lit or column.role is None or column.values[row] is None
                else column.role(column.values[row])
            )
            style = line_style + self._style(role) if role else line_style
            segments += [
                Segment(fit(column.text(row), width, right=column.right, plain=self._plain), style),
                Segment(" " * _GAP, line_style),
            ]
        return segments

    def _style(self, role: str) -> Style:
        return self._palette.style(role) if self._palette else Style.null()


def _reversed(ascending: Ints, column: Column) -> Ints:
    """The other way round; rows without a value stay last."""
    known = len(ascending) - sum(map(_missing, column.values))
    return np.concatenate([ascending[:known][::-1], ascending[known:]])
