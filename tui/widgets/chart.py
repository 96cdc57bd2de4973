"""Curves over time in characters: a sparkline for a table's cell, and a small chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rich.cells import cell_len

from profkit.analysis.views.series import Series, spread_bins
from profkit.tui.widgets.draw import level


def spark(series: Series, width: int, *, plain: bool = False) -> str:
    """Return the mean of each cell between zero and the highest reading; a gap is blank."""
    low, high = min(0.0, series.least), max(0.0, series.most)
    text = ""
    for cell in spread_bins(series, max(1, width)):
        mean = math.nan if cell is None else cell.mean
        text += level(mean, low, high, plain=plain)
    return text


def chart(
    series: Series, width: int, height: int, show: Callable[[float], str], *, plain: bool = False
) -> Iterator[str]:
    """Yield the rows of a chart from the top, with the scale on the left.

    A column is filled up to its lowest reading and shaded up to its highest. A row is drawn if a
    reading reaches the row's middle.
    """
    low, high = min(0.0, series.least), max(0.0, series.most)
    labels = [show(high), *[""] * (height - 2), show(low)]
    room = max(map(cell_len, labels))
    cells = spread_bins(series, max(1, width - room - 2))
    solid, shaded, axis = ("#", ":", "|") if plain else ("█", "▒", "┤")
    for number, label in enumerate(labels):
        bottom = low + (high - low) * (height - number - 1) / height
        top = low + (high - low) * (height - number) / height
        middle = (bottom + top) / 2
        row = f"{label:>{room}} {axis}"
        for cell in cells:
            if cell is None or cell.high < middle:
                row += " "
            elif cell.low < middle:
                row += shaded
            else:
                row += solid
        yield row
