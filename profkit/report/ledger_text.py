"""The scaling of several runs as plain text, and the words that the interface shares."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.explain.scaling import ScalingRow
from profkit.report import as_text, scaling_document
from profkit.report.cause_words import (
    cause_cost,
    cause_name,
    coverage_words,
    doubted_causes,
    no_cause_words,
    without_words,
)
from profkit.report.ledger_words import (
    meeting_words,
    pace,
    row_cells,
    scaling_words,
    verdict_words,
)
from profkit.text import signed

__all__ = [
    "cause_cost",
    "cause_name",
    "coverage_words",
    "doubted_causes",
    "meeting_words",
    "no_cause_words",
    "pace",
    "row_cells",
    "scaling",
    "scaling_words",
    "signed",
    "verdict_words",
    "without_words",
]


def scaling(rows: Sequence[ScalingRow]) -> str:
    """Return the runs as a table; the factors of each row multiply to its efficiency."""
    return as_text.document(scaling_document.scaling(rows))
