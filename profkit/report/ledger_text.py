"""Two runs, or more, as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement
from profkit.explain.scaling import ScalingRow
from profkit.report import as_text, ledger_document
from profkit.report.ledger_words import (
    finding_cost,
    meeting_words,
    pace,
    row_cells,
    scaling_words,
    verdict_words,
)
from profkit.text import signed

__all__ = [
    "explained",
    "finding_cost",
    "meeting_words",
    "pace",
    "row_cells",
    "scaling",
    "scaling_words",
    "signed",
    "verdict_words",
]


def explained(view: Explained, judgements: Sequence[Judgement] = ()) -> str:
    """Return one screen: the verdict, the rows, the causes, and other differences."""
    return as_text.document(ledger_document.explained(view, judgements))


def scaling(rows: Sequence[ScalingRow]) -> str:
    """Return the runs as a table; the factors of each row multiply to its efficiency."""
    return as_text.document(ledger_document.scaling(rows))
