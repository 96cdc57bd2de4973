"""The strip of step times over a run: the longest step of each cell, and its kind below."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from profkit.analysis.run_change import RunChange
from profkit.analysis.views.pictures import USED, StepPoint
from profkit.show.figures import reason_name
from profkit.text import duration
from profkit.tui.themes import Palette
from profkit.tui.widgets.draw import Piece, level, line

TALL_ROWS: Final = 4
MIN_HEIGHT_FOR_TALL: Final = 30
"""A screen of this many lines has room for a strip of `TALL_ROWS` rows instead of one."""

MAX_CELLS_PER_STEP: Final = 3
"""A step is at most this wide if there are fewer steps than cells."""

OUTLIER_FACTOR: Final = 3
"""Steps longer than this many medians do not set the scale; `^` marks them."""


def strip(
    points: Sequence[StepPoint], palette: Palette, width: int, height: int, *, plain: bool
) -> list[Text]:
    """Return the strip as lines for a screen of this height."""
    if not points:
        return []
    rows = TALL_ROWS if height >= MIN_HEIGHT_FOR_TALL else 1
    cells = _cells(points, width)
    kinds: list[str] = []
    for cell in cells:
        kinds.append(USED)
        for point in reversed(cell):  # so that the first unusual kind remains
            if point.kind != USED:
                kinds[-1] = point.kind
    marks = _marks(points)
    times = [point.high_ns for point in points]
    usual = [point.high_ns for point in points if point.kind == USED] or times
    median = sorted(usual)[len(usual) // 2]
    top = min(max(times), OUTLIER_FACTOR * median)
    step = top / rows
    lines: list[Text] = []
    for row in reversed(range(rows)):
        low, high = row * step, (row + 1) * step
        pieces: list[Piece] = []
        for cell, kind in zip(cells, kinds, strict=True):
            value = max(point.high_ns for point in cell)
            style = palette.style("forward" if kind == USED else "unsure")
            if value <= low:
                pieces.append((" ", None))
            elif value > top and row == rows - 1:
                pieces.append(("^", style))
            else:
                pieces.append((level(min(value, high), low, high, plain=plain), style))
        lines.append(line(pieces))
    lines.append(line([(marks.get(kind, " "), palette.style("unsure")) for kind in kinds]))
    first, last = points[0].step, points[-1].step + points[-1].count - 1
    words = f"steps {first:,} to {last:,}, up to {duration(top)}"
    for kind, mark in marks.items():
        words += f"   {mark} {reason_name(kind)}"
    lines.append(line([(words, palette.style("dim"))]))
    return lines


def change_marks(
    points: Sequence[StepPoint],
    changes: Sequence[RunChange],
    palette: Palette,
    width: int,
    *,
    plain: bool,
) -> list[Text]:
    """Return the line above the strip, with a mark for each change of the step time."""
    if not points or not changes:
        return []
    begins = [cell[0].step for cell in _cells(points, width)]
    pieces: list[Piece] = [(" ", None)] * len(begins)
    for change in changes:
        place = bisect_right(begins, change.first_step) - 1
        first = bisect_left(begins, begins[max(0, place)])  # a step may have several cells
        pieces[first] = ("v" if plain else "▼", palette.style("bad"))
    return [line(pieces)]


def _cells(points: Sequence[StepPoint], width: int) -> list[Sequence[StepPoint]]:
    """Return the points of each cell; with few points each has several cells."""
    count = max(1, min(width, len(points)))
    wide = 1
    if count < width:
        wide = min(max(1, width // count), MAX_CELLS_PER_STEP)
    cells: list[Sequence[StepPoint]] = []
    for place in range(count):
        begin, end = place * len(points) // count, (place + 1) * len(points) // count
        cells += [points[begin:end]] * wide
    return cells


def _marks(points: Sequence[StepPoint]) -> dict[str, str]:
    """Return a mark for each unusual kind: the first letter that no other kind has."""
    marks: dict[str, str] = {}
    for kind in dict.fromkeys(point.kind for point in points):
        if kind != USED:
            letters = (
                char for char in reason_name(kind) if char.isalpha() and char not in marks.values()
            )
            marks[kind] = next(letters, "*")
    return marks
