"""Bars, strips and lines of text, in blocks or in plain ASCII."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from profkit.text import safe_text

_EIGHTHS = "▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".:-=+*%#"


def fit(text: str, width: int, *, right: bool = False, plain: bool = False) -> str:
    """`text`, safe to show, in exactly so many cells; what does not fit ends in an ellipsis, or a tilde in ASCII."""
    shown = safe_text(text[: 4 * width + 4])
    if plain:
        shown = shown.encode("ascii", "replace").decode()
    length = cell_len(shown)
    if length > width:
        return set_cell_size(shown, max(0, width - 1)) + ("~" if plain else "…") * min(1, width)
    return " " * (width - length) + shown if right else shown + " " * (width - length)


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """A bar of at most `width` cells, in eighths of one. What is below zero, or no number, has no bar: its figure says so."""
    if not math.isfinite(share) or share <= 0:
        return ""
    if plain:
        return "#" * round(min(1.0, share) * width)
    whole, eighths = divmod(round(min(1.0, share) * width * 8), 8)
    return "█" * whole + (_EIGHTHS[eighths - 1] if eighths else "")


def stacked(parts: Sequence[tuple[str, float]], width: int) -> list[tuple[str, int]]:
    """How many cells each part of a whole gets: in all exactly `width`, by the largest remainders; parts below zero get none."""
    lengths = [max(0.0, share) if math.isfinite(share) else 0.0 for _, share in parts]
    whole = sum(lengths)
    if not whole:
        return [(name, 0) for name, _ in parts]
    exact = [length / whole * width for length in lengths]
    cells = [int(length) for length in exact]
    by_remainder = sorted(range(len(parts)), key=lambda place: cells[place] - exact[place])
    for place in by_remainder[: width - sum(cells)]:
        cells[place] += 1
    return [(name, count) for (name, _), count in zip(parts, cells, strict=True)]


def level(value: float, low: float, high: float, *, plain: bool = False) -> str:
    """One cell that shows where a value lies between two others; a space where it is no number."""
    if not math.isfinite(value):
        return " "
    levels = _ASCII_LEVELS if plain else _LEVELS
    share = (value - low) / (high - low) if high > low else 0.0
    return levels[min(len(levels) - 1, max(0, int(share * len(levels))))]


def line(parts: Iterable[tuple[str, Style | None]]) -> Text:
    """Pieces of safe text with their styles, as one line that is never folded."""
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    for piece, style in parts:
        text.append(safe_text(piece), style)
    return text


def lines(each: Iterable[Iterable[tuple[str, Style | None]]]) -> Text:
    """Several such lines below each other."""
    return Text("\n", no_wrap=True, overflow="ellipsis").join(map(line, each))
