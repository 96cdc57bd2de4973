"""A flame graph as lines of cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.style import Style
from rich.text import Text

from profkit.analysis.flames import Flame, FlameBox
from profkit.show.flame_chart import box_words
from profkit.tui.themes import Palette
from profkit.tui.widgets.draw import Piece, fit, line

WHOLE: Final = 0.995
"""Outer callers that hold more than this share of the time are left out, but for the innermost."""

OWN_MARK, OTHER_MARK = "▌", "▏"
PLAIN_OWN_MARK, PLAIN_OTHER_MARK = "#", "|"
"""A box begins with its mark: that of the job's own code, or of other code."""


def flame_lines(flame: Flame, palette: Palette, width: int, *, plain: bool) -> Iterator[Text]:
    """Yield a line for each depth, callers first, without outer callers that hold everything."""
    levels: dict[int, list[FlameBox]] = {}
    for box in flame.boxes:
        levels.setdefault(box.depth, []).append(box)
    first = 0
    while (
        first + 1 in levels and len(levels[first + 1]) == 1 and levels[first + 1][0].share > WHOLE
    ):
        first += 1
    for depth in sorted(levels):
        if depth >= first:
            yield _flame_line(levels[depth], flame.phase, palette, width, plain=plain)


def _flame_line(
    boxes: list[FlameBox], phase: str, palette: Palette, width: int, *, plain: bool
) -> Text:
    pieces: list[Piece] = []
    filled = 0
    marks = (PLAIN_OWN_MARK, PLAIN_OTHER_MARK) if plain else (OWN_MARK, OTHER_MARK)
    for box in sorted(boxes, key=lambda each: each.start):
        left, right = round(box.start * width), round((box.start + box.share) * width)
        if right <= left:
            continue
        pieces.append((" " * (left - filled), None))
        name = fit(box_words(box), right - left - 1, plain=plain)
        style: Style = palette.style(phase if box.is_own else "dim")
        pieces.append(((marks[0] if box.is_own else marks[1]) + name, style))
        filled = right
    return line(pieces)
