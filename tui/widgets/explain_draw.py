"""The comparison of two runs: its rows with their bars."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from profkit.explain.ledger import Ledger
from profkit.explain.waterfall import Drop
from profkit.report import ledger_words
from profkit.report.words import role_of
from profkit.tui.widgets.columns import GAP, Column, least_width
from profkit.tui.widgets.document import columns_of

WIDEST_BAR, SLIMMEST_BAR = 24, 8
BAR_PLACE: Final = 4
"""The bars come after the differences that they show."""

LEAST_SCALE: Final = 0.01
"""The axis of the bars covers at least this share of the larger side."""


def waterfall_columns(
    ledger: Ledger, drops: Sequence[Drop], width: int, *, plain: bool
) -> list[Column]:
    """Return the rows of the ledger with both sides, and a bar from each row to the next.

    A bar begins where the row above ended. The totals at both ends have one side alone. In a table
    of this width, the bars take what the figures leave.
    """
    rows = ledger_words.row_table(ledger, [drop.row for drop in drops])
    columns = columns_of(dataclasses.replace(rows, inside=None))
    labels, roles = zip(*map(_label, drops), strict=True)
    columns[0] = Column("where the time goes", labels, stretches=True, roles=roles, widest=34)
    one_sided = {"base": (2, 3, 4, 5), "target": (1,)}
    for place, column in enumerate(columns[1:], start=1):
        values = []
        for drop, value in zip(drops, column.values, strict=True):
            values.append(None if place in one_sided.get(drop.kind, ()) else value)
        columns[place] = dataclasses.replace(column, values=values)
    columns[4], columns[5] = columns[5], columns[4]
    room = width - least_width(columns, range(len(drops))) - GAP
    room = min(WIDEST_BAR, max(SLIMMEST_BAR, room))
    scale = _scale(drops)
    falls = [_fall(drop, scale, room, plain=plain) for drop in drops]
    bars, bar_roles = zip(*falls, strict=True)
    bar_column = Column("", bars, roles=bar_roles, searched=False, widest=room)
    columns.insert(BAR_PLACE, bar_column)
    return columns


def _label(drop: Drop) -> tuple[str, str]:
    """Return the name of a row, and its role."""
    if drop.kind in {"base", "target"}:
        return f"total of {drop.kind}", "title"
    if drop.kind == "overlapped":
        return f"(overlapped) {drop.name}", "dim"
    if drop.depth:
        return "  " * drop.depth + drop.name, "dim"
    return drop.name, role_of(drop.name)


def _scale(drops: Sequence[Drop]) -> tuple[float, float]:
    """Return the ends of the axis: a little below the lowest end of a bar, and the highest.

    They are so far apart that a difference of nothing fills no bar.
    """
    places = [0.0]
    for drop in drops:
        if drop.kind == "row":
            places += [drop.start_ns, drop.end_ns]
        elif drop.kind in {"base", "target"}:
            places.append(drop.end_ns)
    finite = [place for place in places[1:] if math.isfinite(place)] or places[:1]
    highest = max(finite)
    lowest = min(*finite, highest * (1 - LEAST_SCALE))
    margin = (highest - lowest) / 8
    if lowest >= 0:
        return max(0.0, lowest - margin), highest
    return lowest - margin, highest


def _fall(drop: Drop, scale: tuple[float, float], width: int, *, plain: bool) -> tuple[str, str]:
    """Return a bar from a row's begin to its end, and the bar's role.

    Added time is solid, and saved time is hatched.
    """
    low, high = scale
    start, end = drop.start_ns, drop.end_ns
    role = "bad" if end > start else "good"
    if drop.kind != "row":
        role = "dim"
    is_total = drop.kind in {"base", "target"}
    if is_total:
        start = low
    finite = math.isfinite(drop.start_ns) and math.isfinite(end)
    if drop.kind == "overlapped" or high <= low or not finite:
        return "", role
    left = round((min(start, end) - low) / (high - low) * width)
    right = round((max(start, end) - low) / (high - low) * width)
    added, saved, total, thin = ("+", "-", "=", "|") if plain else ("█", "▒", "━", "▏")
    if left == right:
        return " " * min(left, width - 1) + thin, role
    mark = saved
    if is_total:
        mark = total
    elif end > start:
        mark = added
    return " " * left + mark * (right - left), role
