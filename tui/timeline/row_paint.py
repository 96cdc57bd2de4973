"""A row of the timeline as cells, with names written over cells that belong together.

A cell that is covered by half or more is filled; without colours its letter is a capital. A cell
that is covered by less shows the small letter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.style import Style

from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.view import SHORTEST_LABEL, CounterRow, Label, Row
from profkit.frame.estimate import Ints
from profkit.tui.timeline.painted import Look, Painted, filled, letters_for
from profkit.tui.widgets.draw import fit, level
from profkit.tui.widgets.readings import describe

FILLED_SHARE: Final = 0.5
MIN_PART_OF_NAME: Final = 5
"""A name is cut off only if at least this many cells of it remain."""

MAX_NAME: Final = 200
_TEMPLATE: Final = re.compile(r"[<(].*")
_NOTHING: Final[Painted] = (" ", Style.null())


def row_cells(row: Row, widths: Ints, look: Look, *, names: bool = True) -> list[Painted]:
    """Return one cell for each column, with names over what they belong to."""
    letters = letters_for(row.kind_names)
    # What a cell can look like is made once per kind: first nothing, then each kind's letter on the
    # plain ground and filled.
    looks: list[Painted] = [_NOTHING, _NOTHING]
    for name in row.kind_names:
        looks.append((letters[name], look.kind(name)))
        capital = letters[name].upper() if look.letters else " "
        looks.append((capital, filled(look.kind(name))))
    is_filled = (row.kinds != NONE) & (row.covered_ns >= FILLED_SHARE * widths)
    cells = [looks[place] for place in (2 * (row.kinds - NONE) + is_filled).tolist()]
    if names and row.labels:
        filled_cells = is_filled.tolist()
        for label in row.labels:
            place = _filled_part(label, filled_cells)
            if place.columns >= SHORTEST_LABEL:
                _write(cells, place.column, label_text(place, letters, look))
    return cells


def _filled_part(label: Label, is_filled: Sequence[bool]) -> Label:
    """Return the longest filled stretch of a label's cells: names need a ground."""
    longest = first = label.column
    length = 0
    for column in range(label.column, label.column + label.columns):
        if not is_filled[column]:
            first = column + 1
        elif column + 1 - first > length:
            longest, length = first, column + 1 - first
    return Label(longest, length, label.text)


def label_text(label: Label, letters: Mapping[str, str], look: Look) -> str:
    """Return a name, or a useful part of it, that fits; for a kind without room, its letter.

    If letters show what is where, they continue behind the name.
    """
    shown = short_name(label.text)
    if look.letters:
        if len(shown) + 2 > label.columns:
            return ""
        return fit(shown, len(shown), plain=look.plain) + " "
    can_be_cut = label.text not in letters and label.columns >= MIN_PART_OF_NAME
    if cell_len(shown) <= label.columns or can_be_cut:
        return fit(shown, label.columns, plain=look.plain)
    return letters.get(label.text, "").upper()


def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces and templates."""
    if " " not in name and "::" not in name:
        return name
    bare = _TEMPLATE.sub("", name[:MAX_NAME].removeprefix("void ")).rstrip()
    return bare.rpartition("::")[2] or name[:MAX_NAME]


def _write(cells: list[Painted], column: int, text: str) -> None:
    """Put text over cells whose style stays.

    A wide character takes two cells, and a combining one joins the character before it.
    """
    at = column
    for char in text:
        width = 1 if char.isascii() else cell_len(char)
        if not width:
            cells[at - 1] = (cells[at - 1][0] + char, cells[at - 1][1])
            continue
        cells[at] = (char, cells[at][1])
        if width > 1:
            cells[at + 1] = ("", cells[at + 1][1])
        at += width


def counter_cells(row: CounterRow, look: Look) -> list[Painted]:
    """Return the mean of each cell between zero and the largest one; a dot without a reading."""
    values = row.means.tolist()
    known = [value for value in values if math.isfinite(value)]
    low, high = min([0.0, *known]), max(known, default=0.0)
    nothing = look.char("·", " "), look.palette.style("dim")
    style = look.palette.style("accent")
    cells: list[Painted] = []
    for value in values:
        if math.isfinite(value):
            cells.append((level(value, low, high, plain=look.plain), style))
        else:
            cells.append(nothing)
    return cells


def counter_words(row: CounterRow, column: int) -> tuple[str, str]:
    """Return a counter's name and its latest reading up to a column; `-` without a reading."""
    name, show = describe(row.metric)
    value = row.before
    for mean in row.means[: column + 1].tolist():
        if math.isfinite(mean):
            value = mean
    if not math.isfinite(value):
        return name, "-"
    return name, show(value)
