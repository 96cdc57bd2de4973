"""The columns of a table: their values, how a value is shown, and how wide they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
from rich.cells import cell_len

MEASURED_ROWS: Final = 200
"""A column is as wide as its widest cell in this many rows; measuring a million takes a second."""

GAP: Final = 2
"""Blank cells after each column."""

MIN_STRETCHED_WIDTH: Final = 28
"""The stretching column keeps this many cells; with less room the table scrolls sideways."""

_ARROW_ROOM: Final = 2
"""Cells after a title for the arrow that shows the sort order."""

MAX_WIDTH: Final = 60
"""Cells of a column, unless it says otherwise."""

Show = Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """One column: its values, how a value is shown, and the role that a value's text has."""

    title: str
    values: Sequence[Any] | npt.NDArray[Any]
    show: Show = str
    right: bool = False
    role: Show | None = None
    stretches: bool = False
    """True for the column that is narrowed if the table has too little room."""
    cut_in_middle: bool = False
    """True if texts that are too long differ at their ends, as names of runs do."""
    searched: bool = True
    """True if the filter looks into the column."""
    widest: int = MAX_WIDTH
    roles: Sequence[str] | None = None
    """The role of each row, for a column whose values do not determine it."""

    def text(self, row: int) -> str:
        value = self.values[row]
        return "-" if value is None else self.show(value)

    def role_of(self, row: int) -> str:
        """Return the role of a row's cell, or an empty string for plain text."""
        if self.roles is not None:
            return self.roles[row]
        if self.role is None or self.values[row] is None:
            return ""
        return self.role(self.values[row])

    def natural_width(self, rows: Iterable[int]) -> int:
        """Return the cells that these rows need, at least those of the title with an arrow."""
        width = cell_len(self.title) + _ARROW_ROOM
        for row in rows:
            width = max(width, cell_len(self.text(row)[: self.widest + 1]))
        return min(self.widest, width)


def column_widths(columns: Sequence[Column], rows: Iterable[int], width: int) -> list[int]:
    """Return the cells of each column; the stretching one is narrowed if they do not fit."""
    measured = list(rows)
    widths = [column.natural_width(measured) for column in columns]
    missing = min(0, width - sum(widths) - GAP * len(widths) - 1)
    for place, column in enumerate(columns):
        if column.stretches:
            least = min(widths[place], MIN_STRETCHED_WIDTH)
            widths[place] = max(least, widths[place] + missing)
    return widths


def least_width(columns: Sequence[Column], rows: Iterable[int]) -> int:
    """Return the cells that a table of these columns needs at least."""
    return sum(column_widths(columns, rows, 0)) + GAP * len(columns) + 1
