"""The parts of a document as lines and columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

from rich.style import Style
from rich.text import Text

from profkit.frame.estimate import Estimate
from profkit.show.document import Document, Fact, Section, Table, Tone, cell_text
from profkit.show.figures import range_words
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import MAX_WIDTH, Column
from profkit.tui.widgets.draw import Piece, folded, line

ROLES: Final = {Tone.GOOD: "good", Tone.BAD: "bad", Tone.PLAIN: "dim", Tone.UNSURE: "unsure"}
INDENT: Final = "  "
LABEL_WIDTH: Final = 14
WIDEST: Final = 100
"""Cells of a column that stretches."""


def columns_of(table: Table) -> list[Column]:
    """Return the columns of a table that is sorted, filtered and walked through."""
    rows = list(table.visible())
    found: list[Column] = []
    named = any(column.stretches for column in table.visible_columns())
    for column in table.visible_columns():
        cells = [column.get(row) for _, row in rows]
        values = [cell.value if isinstance(cell, Estimate) else cell for cell in cells]
        if not found and table.inside is not None:
            names = zip(rows, values, strict=True)
            values = [f"{INDENT * depth}{name}" for (depth, _), name in names]
        found.append(
            Column(
                column.title or "",
                values,
                functools.partial(cell_text, unit=column.unit),
                right=column.is_number,
                role=column.role,
                stretches=column.stretches,
                searched=column.stretches or not (named or column.is_number),
                widest=WIDEST if column.stretches else MAX_WIDTH,
            )
        )
        if column.interval:
            bounds = [range_words(cell, column.unit) for cell in cells]
            found.append(Column("95 % interval", bounds, searched=False))
    return found


def lines_of(section: Section, palette: Palette, style: str = "dim") -> Iterator[Text]:
    """Yield the notes, causes and labelled texts of a section; `style` is that of notes."""
    for note in section.notes:
        yield folded((note, palette.style(style)))
    for number, cause in enumerate(section.causes, start=1):
        kind = (f"{number} {cause.kind}: ", palette.style(ROLES[cause.tone]))
        pieces: list[Piece] = [kind, (cause.cost, palette.style("title"))]
        evidence = (f"  {cause.evidence}", palette.style("dim"))
        if cause.remedy:
            yield folded(*pieces)
            yield folded(evidence)
            yield folded(("  try: ", palette.style("good")), (cause.remedy, None))
        else:
            yield folded(*pieces, evidence)
    if section.ending:
        yield folded((section.ending, palette.style(style)))
    grid = section.grid if not isinstance(section.table, Table) else None
    for label, *words in grid.rows if grid else ():
        yield folded((f"{label:<{LABEL_WIDTH}} ", palette.style("dim")), (" ".join(words), None))


def facts_line(facts: Iterable[Fact], palette: Palette) -> Text:
    """Return figures next to each other."""
    pieces: list[Piece] = []
    for fact in facts:
        label, words, detail = fact.texts()
        pieces += [(f"{label}  ", palette.style("dim")), (words, palette.style("title"))]
        pieces.append((f"  {detail}    ", palette.style("dim")))
    return line(pieces)


def verdict_lines(document: Document, palette: Palette) -> Iterator[Text]:
    """Yield the verdict with its reasons, and what limits the confidence in it."""
    style = palette.style(ROLES[document.tone]) + Style(bold=True)
    yield folded((f"{document.verdict}: ", style), (document.summary, None))
    for warning in document.warnings:
        yield folded(("note: ", palette.style("unsure")), (warning, None))
