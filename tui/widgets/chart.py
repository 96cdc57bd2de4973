"""Curves over time in characters: a line of levels for a table's cell, and a small chart of lowest, mean and highest values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

from rich.cells import cell_len

from profkit.analysis.views.series import Cell, Series, spread_bins
from profkit.tui.widgets.draw import level

_FILLS: Final = {False: ("█", "▒"), True: ("#", ":")}
"""Below the lowest reading, and from there to the highest."""


def spark(series: Series, width: int, *, plain: bool = False) -> str:
    """The means over time, one character each, from zero to the highest reading; a space where nothing was read."""
    low, high = _scale(series)
    return "".join(
        " " if cell is None else level(cell.mean, low, high, plain=plain)
        for cell in spread_bins(series, max(1, width))
    )


def _scale(series: Series) -> tuple[float, float]:
    return min(0.0, series.least), max(0.0, series.most)


def chart(
    series: Series, width: int, height: int, show: Callable[[float], str], *, plain: bool = False
) -> Iterator[str]:
    """Rows from the top: filled up to each column's lowest reading, shaded up to its highest; the scale stands on the left."""
    low, high = _scale(series)
    labels = [show(high), *[""] * (height - 2), show(low)]
    room = max(map(cell_len, labels))
    cells = spread_bins(series, max(1, width - room - 2))
    borders = [low + (high - low) * place / height for place in range(height + 1)]
    for label, (bottom, top) in zip(
        labels, reversed(list(itertools.pairwise(borders))), strict=True
    ):
        yield f"{label:>{room}} {'|' if plain else '┤'}" + "".join(
            _fill(cell, bottom, top, plain=plain) for cell in cells
        )


def _fill(cell: Cell | None, bottom: float, top: float, *, plain: bool) -> str:
    """One place of the chart, which stands for the readings between two borders; it belongs to what reaches its middle."""
    solid, shaded = _FILLS[plain]
    middle = (bottom + top) / 2
    if cell is None or cell.high < middle:
        return " "
    return solid if cell.low >= middle else shaded
