"""The lines of a table: the heading and a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import GAP, Column
from profkit.tui.widgets.draw import fit, fit_middle


@dataclass(frozen=True)
class TablePainter:
    """Draws lines in a theme; `base` is the style of the widget."""

    palette: Palette
    plain: bool
    base: Style
    columns: Sequence[Column]
    widths: Sequence[int]

    def heading(self, sort_title: str, *, descending: bool) -> Strip:
        """Return the titles, with an arrow on the column that the table is sorted by."""
        arrows = ("^", "v") if self.plain else ("▲", "▼")
        style = self.base + self.palette.style("dim") + Style(bold=True)
        segments = [Segment(" ", self.base)]
        for column, width in zip(self.columns, self.widths, strict=True):
            title = column.title
            if title and title == sort_title:
                title += f" {arrows[descending]}"
            text = fit(title, width, right=column.right, plain=self.plain)
            segments += [Segment(text, style), Segment(" " * GAP, self.base)]
        return Strip(segments)

    def _cell(self, column: Column, text: str, width: int) -> str:
        cut = fit_middle if column.cut_in_middle else fit
        return cut(text, width, right=column.right, plain=self.plain)

    def window(self, strip: Strip, left: int, width: int) -> Strip:
        """Return the cells of a line that are in view, with an ellipsis where it goes on.

        Half a figure would be another figure.
        """
        ellipsis, right = "~" if self.plain else "…", left + width
        shown = strip.crop(left, right)
        if strip.crop(0, left).text.strip():
            shown = Strip.join([Strip([Segment(ellipsis, self.base)]), shown.crop(1)])
        if strip.crop(right).text.strip():
            shown = Strip.join([shown.crop(0, width - 1), Strip([Segment(ellipsis, self.base)])])
        return shown

    def row(self, row: int, *, under_cursor: bool, has_focus: bool, marked: bool) -> Strip:
        """Return the cells of a row; a cursor in reverse video hides the roles of the cells."""
        lit = under_cursor and has_focus
        ground = self.base
        if marked:
            ground += self.palette.style("marked")
        if lit:
            ground += self.palette.style("cursor")
        sign = " "
        if marked:
            sign = "*"
        elif under_cursor and self.plain:
            sign = ">"
        segments = [Segment(sign, ground)]
        for column, width in zip(self.columns, self.widths, strict=True):
            style = ground
            role = column.role_of(row)
            if role and not ground.reverse:
                style += self.palette.style(role)
            text = self._cell(column, column.text(row), width)
            segments += [Segment(text, style), Segment(" " * GAP, ground)]
        return Strip(segments)
