"""A folder of runs as plain text, and the words of the cells that the list on the screen shares with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from profkit.analysis.estimate import Estimate
from profkit.analysis.views.runs import NO_FIGURES, RunFigures, RunRow
from profkit.text import percent, plural, safe_text, significant, table

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
    "top finding",
    "state",
)
_RIGHT = frozenset({3, 5, 6, 8})


def runs(rows: Sequence[RunRow], folder: Path) -> str:
    """One line a run, the newest first."""
    if not rows:
        return f"no runs in {safe_text(str(folder))}; make one with 'profkit trace WORKLOAD'"
    return f"{plural(len(rows), 'run')} in {safe_text(str(folder))}\n\n" + table(
        [HEADER, *map(_cells, rows)], right=_RIGHT
    )


def _cells(row: RunRow) -> list[str]:
    head, figures = row.head, row.figures or NO_FIGURES
    counts = ["-" if count is None else str(count) for count in (head.ranks, head.batch_size)]
    words = [
        safe_text(word) or "-"
        for word in (head.name, head.workload, head.framework, head.precision)
    ]
    speed = [
        throughput(figures.throughput),
        interval(figures.throughput),
        "-" if row.efficiency is None else efficiency(row.efficiency),
    ]
    return [
        *words[:3],
        counts[0],
        words[3],
        counts[1],
        *speed,
        finding(figures),
        safe_text(head.problem or figures.problem or head.state),
    ]


def throughput(found: Estimate) -> str:
    return significant(found.value, 4)


def interval(found: Estimate) -> str:
    return (
        "-"
        if found.low is None or found.high is None
        else f"{significant(found.low, 4)} to {significant(found.high, 4)}"
    )


def efficiency(found: Estimate) -> str:
    return percent(found.value) if math.isfinite(found.value) else "-"


def finding(figures: RunFigures) -> str:
    """The costliest finding and its share of a step."""
    if not figures.finding:
        return "none" if figures.steps else "-"
    return f"{figures.finding} {percent(figures.finding_share or 0.0)}"
