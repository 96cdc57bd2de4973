"""Lines of the timeline as text with styles: rulers, rows of cells, counters, the legend. Nothing here measures anything.

A cell that is covered by half or more is filled, and its letter is a capital where there are no colours to tell; one that
is covered by less has the small letter. Names stand over cells that belong together.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from profkit.analysis.estimate import Ints
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.view import SHORTEST_LABEL, CounterRow, Label, Row, StepMark
from profkit.analysis.timeline.window import Window
from profkit.tui.themes import PHASE_LETTERS, Palette
from profkit.tui.widgets.draw import fit, level
from profkit.tui.widgets.readings import describe

Painted = tuple[str, Style]

_ROLE_OF: Final[Mapping[str, str]] = {
    **{phase: phase for phase in PHASE_LETTERS},
    "convolution": "forward",
    "gemm": "backward",
    "attention": "h2d",
    "communication": "allreduce",
    "all_reduce": "allreduce",
    "reduce_scatter": "backward",
    "all_gather": "forward",
    "broadcast": "h2d",
    "normalisation": "optimizer",
    "reduction": "data",
    "elementwise": "other",
    "optimizer": "optimizer",
    "copy to device": "h2d",
    "copy to host": "h2d",
    "layout": "allreduce",
    "cast or copy": "data",
}
"""Which of a theme's colours a kind has; letters tell apart what shares one."""

_LETTER_OF: Final[Mapping[str, str]] = {
    **PHASE_LETTERS,
    "convolution": "c",
    "gemm": "g",
    "attention": "t",
    "communication": "m",
    "all_reduce": "r",
    "normalisation": "n",
    "reduction": "r",
    "elementwise": "e",
    "copy to device": "h",
    "copy to host": "k",
    "layout": "l",
    "pooling": "p",
    "softmax": "s",
}
_SPARE_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SPARE_ROLES: Final = ("data", "h2d", "forward", "backward", "allreduce", "optimizer", "other")

FILLED_SHARE: Final = 0.5
SHORTEST_PART: Final = 5
"""Cells in which an event's name that is cut off still says something."""

_NOTHING: Final[Painted] = (" ", Style.null())
_BLACK, _WHITE = Color.parse("#000000"), Color.parse("#ffffff")
_LUMINANCE: Final = (0.299, 0.587, 0.114)
_BRIGHT: Final = 128


@dataclass(frozen=True)
class Look:
    """How things are drawn: in which colours, whether in ASCII, and whether letters have to tell what colours cannot."""

    palette: Palette
    plain: bool
    letters: bool

    def role(self, name: str) -> Style:
        return self.palette.style(name)

    def kind(self, name: str) -> Style:
        return self.role(
            _ROLE_OF.get(name) or _SPARE_ROLES[sum(map(ord, name)) % len(_SPARE_ROLES)]
        )

    def filled(self, name: str) -> Style:
        return _filled(self.kind(name))

    def char(self, fancy: str, plain: str) -> str:
        return plain if self.plain else fancy


@functools.cache
def _filled(style: Style) -> Style:
    """The style's colour as a ground, with letters that can be read on it."""
    colour = style.color or Color.default()
    triplet = colour.get_truecolor()
    bright = sum(part * weight for part, weight in zip(triplet, _LUMINANCE, strict=True)) > _BRIGHT
    return Style(color=_BLACK if bright else _WHITE, bgcolor=colour)


@functools.lru_cache(maxsize=256)
def letters_for(kinds: tuple[str, ...]) -> Mapping[str, str]:
    """A small letter for each kind, no two the same while the alphabet lasts: its usual one, else the first of its name that is free."""
    found: dict[str, str] = {}
    for kind in sorted(kinds, key=lambda name: (name not in _LETTER_OF, name)):
        wanted = [_LETTER_OF.get(kind, ""), *kind.lower(), *_SPARE_LETTERS]
        free = (
            letter
            for letter in wanted
            if letter in _SPARE_LETTERS and letter and letter not in found.values()
        )
        found[kind] = next(free, "?") if _LETTER_OF.get(kind) != "?" else "?"
    return found


def row_cells(row: Row, widths: Ints, look: Look) -> list[Painted]:
    """One cell a column, as a letter on its ground; names over them."""
    cells, _ = _plain_cells(row, widths, look)
    return cells


def named_cells(row: Row, widths: Ints, look: Look) -> list[Painted]:
    """The same with names over what they belong to."""
    cells, solid = _plain_cells(row, widths, look)
    letters = letters_for(row.kind_names)
    for label in row.labels:
        place = _filled_part(label, solid)
        if place.columns >= SHORTEST_LABEL:
            _write(cells, place.column, label_text(place, letters, look))
    return cells


def _plain_cells(row: Row, widths: Ints, look: Look) -> tuple[list[Painted], list[bool]]:
    """The cells, and which of them are filled. What a cell can look like is made once for each kind."""
    letters = letters_for(row.kind_names)
    looks: list[Painted] = [_NOTHING, _NOTHING]
    for name in row.kind_names:
        looks += [
            (letters[name], look.kind(name)),
            (letters[name].upper() if look.letters else " ", look.filled(name)),
        ]
    solid = (row.kinds != NONE) & (row.covered_ns >= FILLED_SHARE * widths)
    return [looks[place] for place in (2 * (row.kinds - NONE) + solid).tolist()], solid.tolist()


def _filled_part(label: Label, solid: Sequence[bool]) -> Label:
    """The longest stretch of a label's cells that are filled: names are written on a ground."""
    longest = first = label.column
    length = 0
    for column in range(label.column, label.column + label.columns):
        if not solid[column]:
            first = column + 1
        elif column + 1 - first > length:
            longest, length = first, column + 1 - first
    return Label(longest, length, label.text)


def label_text(label: Label, letters: Mapping[str, str], look: Look) -> str:
    """A name for so many cells, or as much of it as says something; of a kind that has no room for its name, the letter.

    Where letters tell what is where, they go on behind the name.
    """
    shown = short_name(label.text)
    if look.letters:
        return (
            fit(shown, len(shown), plain=look.plain) + " "
            if len(shown) + 2 <= label.columns
            else ""
        )
    if cell_len(shown) <= label.columns or (
        label.text not in letters and label.columns >= SHORTEST_PART
    ):
        return fit(shown, label.columns, plain=look.plain)
    return letters.get(label.text, "").upper()


_TEMPLATE: Final = re.compile(r"[<(].*")
_LONGEST_NAME: Final = 200


def short_name(name: str) -> str:
    """A kernel's name without its return type, namespaces and templates; any other as it is."""
    if " " not in name and "::" not in name:
        return name
    bare = _TEMPLATE.sub("", name[:_LONGEST_NAME].removeprefix("void ")).rstrip()
    return bare.rpartition("::")[2] or name[:_LONGEST_NAME]


def _write(cells: list[Painted], column: int, text: str) -> None:
    """Put text over cells whose ground stays. A wide character takes two of them, a combining one goes with what it is on."""
    if text.isascii():
        cells[column : column + len(text)] = [
            (char, style) for char, (_, style) in zip(text, cells[column:], strict=False)
        ]
        return
    at = column
    for char in text:
        width = cell_len(char)
        if not width:
            cells[at - 1] = (cells[at - 1][0] + char, cells[at - 1][1])
            continue
        for place, part in zip(range(at, at + width), (char, ""), strict=False):
            cells[place] = (part, cells[place][1])
        at += width


def counter_cells(row: CounterRow, look: Look) -> list[Painted]:
    """The mean of each cell between zero and the largest of what is in view; a dot where no reading was taken."""
    values = row.means.tolist()
    known = [value for value in values if math.isfinite(value)]
    low, high = min([0.0, *known]), max(known, default=0.0)
    nothing = look.char("·", " "), look.role("dim")
    return [
        (level(value, low, high, plain=look.plain), look.role("accent"))
        if math.isfinite(value)
        else nothing
        for value in values
    ]


def reading_at(row: CounterRow, column: int) -> float:
    """The cell's mean, else the last reading before it; NaN where there is none."""
    taken = [value for value in row.means[: column + 1].tolist() if math.isfinite(value)]
    return taken[-1] if taken else row.before


def counter_words(row: CounterRow, column: int) -> tuple[str, str]:
    """What the counter is called, and its reading there; `-` where none was taken."""
    name, show = describe(row.metric)
    value = reading_at(row, column)
    return name, show(value) if math.isfinite(value) else "-"


def time_ruler(window: Window, look: Look) -> list[Painted]:
    """Round times, as close together as they can be read."""
    cells: list[Painted] = [(look.char("─", "-"), look.role("dim"))] * window.columns
    scale, unit = _unit_of(window.end_ns)
    tick = _tick_ns(window, scale)
    first = -(-window.start_ns // tick)
    for at in range(first, window.end_ns // tick + 1):
        column = window.column_of(at * tick)
        text = look.char("┬", "+") + _ruler_time(at * tick, tick, scale, unit)
        if column is not None and column + len(text) <= window.columns:
            _paint(cells, column, text, look.role("dim"))
    return cells


_SCALES: Final[tuple[tuple[int, str], ...]] = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))
_ROUND: Final[tuple[int, ...]] = tuple(
    digit * 10**power for power in range(19) for digit in (1, 2, 5)
)


def _unit_of(end_ns: int) -> tuple[int, str]:
    return next(((scale, unit) for scale, unit in _SCALES if end_ns >= scale), (1, "ns"))


def _tick_ns(window: Window, scale: int) -> int:
    """The smallest of 1, 2, 5, 10, ... ns whose labels do not touch."""
    wide_enough = (
        tick
        for tick in _ROUND
        if tick >= (len(_ruler_time(window.end_ns, tick, scale, "us")) + 3) * window.cell_ns
    )
    return next(wide_enough, _ROUND[-1])


def _ruler_time(time_ns: int, tick_ns: int, scale: int, unit: str) -> str:
    decimals = max(0, math.ceil(math.log10(scale / tick_ns))) if tick_ns < scale else 0
    return f"{time_ns / scale:.{decimals}f} {unit}"


def step_ruler(marks: Sequence[StepMark], columns: int, look: Look) -> list[Painted]:
    """Where steps begin; of steps that are close together, round numbers."""
    cells: list[Painted] = [(" ", Style.null())] * columns
    stride = _stride(marks, columns)
    free = 0
    for mark in marks:
        text = look.char("│", "|") + str(mark.step)
        if mark.step % stride == 0 and mark.column >= free and mark.column + len(text) <= columns:
            _paint(cells, mark.column, text, look.role("title"))
            free = mark.column + len(text) + 1
    return cells


def _stride(marks: Sequence[StepMark], columns: int) -> int:
    """Of which round number the shown steps are multiples, so that they do not crowd."""
    steps = abs(marks[-1].step - marks[0].step) + 1 if marks else 1
    room = max(1, columns // (len(str(marks[-1].step)) + 4)) if marks else 1
    return next((number for number in _ROUND if number * room >= steps), _ROUND[-1])


def _paint(cells: list[Painted], column: int, text: str, style: Style) -> None:
    for at, char in enumerate(text, start=column):
        cells[at] = (char, style)


def legend(kinds: Iterable[str], letters: Mapping[str, str], look: Look) -> Iterator[Painted]:
    """What the letters and colours stand for."""
    for kind in kinds:
        letter = letters[kind]
        yield f" {letter.upper()} ", look.filled(kind)
        yield f" {kind}  ", look.role("dim")


def strip(cells: Sequence[Painted], width: int, ground: Style) -> Strip:
    """Cells as a line of exactly this width; neighbours of one style are one segment. Styles are told apart by identity: to compare them takes longer."""
    chars, styles = [char for char, _ in cells], [id(style) for _, style in cells]
    grounded = {
        key: ground + style for key, style in {id(style): style for _, style in cells}.items()
    }
    borders = [
        0,
        *(place for place in range(1, len(styles)) if styles[place] != styles[place - 1]),
        len(styles),
    ]
    segments = [
        Segment("".join(chars[first:last]), grounded[styles[first]])
        for first, last in itertools.pairwise(borders)
        if last > first
    ]
    return Strip(segments).adjust_cell_length(width, ground).crop(0, width)
