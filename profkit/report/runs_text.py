"""A folder of runs as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profkit.analysis.runs_view import RunHead
from profkit.text import plural, safe_text, table


def runs(heads: Sequence[RunHead], folder: Path) -> str:
    """One line a run, the newest first."""
    if not heads:
        return f"no runs in {safe_text(str(folder))}; make one with 'profkit trace WORKLOAD'"
    rows = [["run", "workload", "framework", "ranks", "precision", "batch", "state"], *map(_cells, heads)]
    return f"{plural(len(heads), 'run')} in {safe_text(str(folder))}\n\n" + table(rows, right=frozenset({3, 5}))


def _cells(head: RunHead) -> list[str]:
    figures = ["-" if count is None else str(count) for count in (head.ranks, head.batch_size)]
    words = [safe_text(word) or "-" for word in (head.name, head.workload, head.framework, head.precision, head.problem or head.state)]
    return [*words[:3], figures[0], words[3], figures[1], words[4]]
