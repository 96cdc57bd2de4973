"""The words for cells: what is longer, on which ranks, in which steps, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from profkit.explain.cell_steps import When
from profkit.explain.cells import Cell
from profkit.frame.phases import UNKNOWN
from profkit.text import duration, plural, safe_text

MOST_WORDS = 30
"""A reader takes in a sentence of so many words at once."""

_MOST_NAMED = 3


def count_words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def row_words(row: str) -> str:
    if row == UNKNOWN:
        return "outside all phases"
    return f"in {row}"


def rank_words(ranks: Sequence[int]) -> str:
    if not ranks:
        return "all ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        return plural(len(ranks), "rank")
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place_words(cell: Cell) -> str:
    """Return where the time is spent; a place in code is at a line, any other stands alone."""
    if not cell.where:
        return ""
    where = safe_text(cell.where)
    if re.search(r":\d+ ", where):
        return f"at {where}"
    return where


def parts_of(cell: Cell) -> Iterator[str]:
    """Yield the parts of a sentence about a cell, the most important first."""
    on = ""
    if cell.ranks:
        on = f" on {rank_words(cell.ranks)}"
    yield f"{row_words(cell.row)}{on}"
    where = place_words(cell)
    is_at_line = where.startswith("at ") and bool(cell.how)
    if where:
        yield f"{cell.how} {where}" if is_at_line else where
    is_lasting = cell.steps.when in (When.SINCE, When.GROWING)
    yield cell.steps.words() if is_lasting else f"in {cell.steps.words()}"
    if cell.how and not is_at_line:
        yield cell.how


def sentence(cell: Cell, step: float) -> str:
    """Return a whole sentence about a cell; `step` are the samples of a step of the base."""
    cost = duration(abs(cell.ns) * step)
    return f"{cost} per step {_direction(cell)} {', '.join(parts_of(cell))}."


def _direction(cell: Cell) -> str:
    if cell.ns > 0:
        return "more"
    return "less"


def tail(cell: Cell, step: float, most: int, cause: str = "") -> str:
    """Return the cell as the end of a headline, in at most so many words.

    It begins with its own time, or with a `cause` of which the cell is the largest part.
    """
    words = f"{duration(abs(cell.ns) * step)} {_direction(cell)}"
    if cause:
        words = f"{cause}, most"
    for number, part in enumerate(parts_of(cell)):
        longer = f"{words}{',' if number else ''} {part}"
        if count_words(longer) <= most:
            words = longer
    return words
