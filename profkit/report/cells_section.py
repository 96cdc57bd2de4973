"""The parts of a gap as a section of its document."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.explain.cell_words import rank_words, row_words
from profkit.explain.cells import Cell, Cells
from profkit.frame.estimate import scale
from profkit.show.document import NAMED, Column, Section, Table
from profkit.show.figures import NS, SIGNED_NS
from profkit.text import safe_text, signed

MOST_CELLS = 6
"""Cells that people see; all of them are in the JSON."""

CELLS = (
    Column("row", "row", lambda cell: row_words(cell.row)),
    Column("ranks", "ranks", lambda cell: rank_words(cell.ranks)),
    Column("steps", "steps", lambda cell: cell.steps.words()),
    Column("how", "how", lambda cell: cell.how or None),
    Column("where", "where", lambda cell: safe_text(cell.where) or None, stretches=True),
)
"""What a cell is about; its time is the caller's, which knows the step."""


def cell_columns(cells: Cells) -> tuple[Column, ...]:
    """Return the columns of a table of cells, in time per step of the base's batch."""
    step = cells.step
    return (
        Column("ns_per_step", "time", lambda cell: scale(cell.delta, step), SIGNED_NS),
        *CELLS,
        Column(
            "waits_of_others_ns_per_step",
            None,
            lambda cell: cell.moved_ns * step,
            NS,
        ),
        Column("is_rest", None, lambda cell: cell.is_rest),
    )


def rest_words(cells: Cells, shown: Sequence[Cell]) -> str:
    """Return what all cells that are not shown add up to."""
    if not shown:
        return ""
    left = sum(cell.ns for cell in cells.all if cell not in shown) * cells.step
    return f"Time per step, in parts that add up; all others together {signed(left)}."


def cells_section(cells: Cells, told: Sequence[Cell]) -> Section:
    """Return the parts of the gap that stand out, the largest first."""
    shown = told[:MOST_CELLS]
    table = Table(cell_columns(cells), cells.all, shown, only_known=True)
    title = "What the difference is made of" if shown else ""
    notes = tuple(filter(None, [rest_words(cells, shown)]))
    # The headline names the largest.
    return Section(title, notes, table=table, brief=NAMED, key="cells")
