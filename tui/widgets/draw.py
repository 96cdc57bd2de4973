"""Bars, strips and lines of text, in blocks or in plain ASCII."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from profkit.text import safe_text

_EIGHTHS = ("", *"▏▎▍▌▋▊▉")
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".:-=+*%#"

MIN_HALVES = 7
"""A text in fewer cells is cut at its end."""

Piece = tuple[str, Style | None]
"""A piece of text and its style."""


def fit(text: str, width: int, *, right: bool = False, plain: bool = False) -> str:
    """Return a text, safe to show, in exactly so many cells.

    A text that is too long ends in an ellipsis, or in a tilde in ASCII.
    """
    shown = safe_text(text[: 4 * width + 4])
    if plain:
        shown = shown.encode("ascii", "replace").decode()
    missing = width - cell_len(shown)
    if missing < 0:
        ellipsis = "~" if plain else "…"
        return set_cell_size(shown, max(0, width - 1)) + ellipsis * min(1, width)
    if right:
        return " " * missing + shown
    return shown + " " * missing


def fit_middle(text: str, width: int, *, right: bool = False, plain: bool = False) -> str:
    """Return a text as `fit` does; one that is too long is cut in the middle.

    Names of runs differ at their ends.
    """
    shown = safe_text(text)
    if cell_len(shown) <= width or width < MIN_HALVES:
        return fit(text, width, right=right, plain=plain)
    ellipsis = "~" if plain else "…"
    end = width // 2
    begin = set_cell_size(shown, width - end - 1)
    tail = shown
    while cell_len(tail) > end:
        tail = tail[1:]
    return fit(begin + ellipsis + tail, width, plain=plain)


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """Return a bar of at most `width` cells, in eighths of a cell.

    A share that is negative or not a number has no bar.
    """
    if not math.isfinite(share) or share <= 0:
        return ""
    if plain:
        return "#" * round(min(1.0, share) * width)
    whole, eighths = divmod(round(min(1.0, share) * width * 8), 8)
    blocks: str = "█" * whole + _EIGHTHS[eighths]
    return blocks


def stacked(parts: Sequence[tuple[str, float]], width: int) -> list[tuple[str, int]]:
    """Divide `width` cells among the parts of a whole, by the largest remainders.

    A part that is negative or not a number gets no cell.
    """
    lengths: list[float] = []
    for _, share in parts:
        lengths.append(share if math.isfinite(share) and share > 0 else 0.0)
    whole = sum(lengths)
    if not whole:
        return [(name, 0) for name, _ in parts]
    exact = [length / whole * width for length in lengths]
    cells = list(map(int, exact))
    by_remainder = sorted(range(len(parts)), key=lambda place: cells[place] - exact[place])
    for place in by_remainder[: width - sum(cells)]:
        cells[place] += 1
    return [(name, count) for (name, _), count in zip(parts, cells, strict=True)]


def level(value: float, low: float, high: float, *, plain: bool = False) -> str:
    """Return one cell that shows a value's place between two others, or a blank for NaN."""
    if not math.isfinite(value):
        return " "
    levels = _ASCII_LEVELS if plain else _LEVELS
    share = 0.0
    if high > low:
        share = (value - low) / (high - low)
    return levels[min(len(levels) - 1, max(0, int(share * len(levels))))]


def line(pieces: Iterable[Piece]) -> Text:
    """Return pieces of text with their styles as one line that is never wrapped."""
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    for piece, style in pieces:
        text.append(safe_text(piece), style)
    return text


def folded(*pieces: Piece) -> Text:
    """Return pieces of text with their styles as a paragraph that is wrapped."""
    text = line(pieces)
    text.no_wrap, text.overflow = False, "fold"
    return text


def lines(each: Iterable[Iterable[Piece]]) -> Text:
    """Return several lines of pieces below each other."""
    return Text("\n", no_wrap=True, overflow="ellipsis").join(map(line, each))
