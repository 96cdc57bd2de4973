"""A folder of runs as plain text. The list in the interface shares its columns and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profkit.analysis.views.runs import NO_FIGURES, RunFigures, RunRow
from profkit.report.words import NO_FIGURE, interval_range, known, plain
from profkit.text import percent, plural, safe_text, table

HEADER = (
    "run",
    "workload",
    "framework",
    "ranks",
    "precision",
    "batch",
    "samples/s",
    "95 % interval",
    "efficiency",
    "not training",
    "state",
)
_RIGHT = frozenset({3, 5, 6, 8})


def runs(rows: Sequence[RunRow], folder: Path) -> str:
    """Return one line per run, the newest first."""
    if not rows:
        return f"no runs in {safe_text(str(folder))}; make one with 'profkit trace WORKLOAD'"
    lines = table([HEADER, *map(_cells, rows)], right=_RIGHT)
    return f"{plural(len(rows), 'run')} in {safe_text(str(folder))}\n\n{lines}"


def _cells(row: RunRow) -> list[str]:
    head, figures = row.head, row.figures or NO_FIGURES
    return [
        safe_text(head.name) or NO_FIGURE,
        safe_text(head.workload) or NO_FIGURE,
        safe_text(head.framework) or NO_FIGURE,
        known(head.ranks, str),
        safe_text(head.precision) or NO_FIGURE,
        known(head.batch_size, str),
        plain(figures.throughput.value),
        interval_range(figures.throughput, plain),
        NO_FIGURE if row.efficiency is None else percent(row.efficiency.value),
        largest_loss(figures),
        safe_text(head.problem or figures.problem or head.state),
    ]


def largest_loss(figures: RunFigures) -> str:
    """Return the costliest part of a step that trains nothing, and its share."""
    if not figures.loss:
        return "none" if figures.losses_known else NO_FIGURE
    return f"{figures.loss} {percent(figures.loss_share or 0.0)}"
