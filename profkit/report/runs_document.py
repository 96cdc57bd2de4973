"""A folder of runs, which the terminal interface lists with the same columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profkit.analysis.views.runs import NO_FIGURES, RunFigures, RunRow
from profkit.frame.estimate import Estimate
from profkit.show.document import Column, Document, Section, Table, Tone
from profkit.show.figures import NO_FIGURE, RATE, SHARE, WORDS, Unit
from profkit.text import percent, plural, safe_text

_STATE_ROLES = {"complete": "good", "running": "accent"}
_NUMBER_WORD = Unit(str)
"""Shows a whole number without a separator between thousands."""


def runs(rows: Sequence[RunRow], folder: Path) -> Document:
    """Return the document of a folder: one line per run, the newest first."""
    where = safe_text(str(folder))
    title = f"{plural(len(rows), 'run')} in {where}"
    if not rows:
        title = f"no runs in {where}; make one with 'profkit run -- COMMAND'"
    section = Section(title, table=Table(RUNS, rows, whole=True), key="runs")
    return Document(title, "", "", Tone.PLAIN, "", sections=(section,))


def largest_loss(figures: RunFigures) -> str:
    """Return the costliest part of a step that trains nothing, and its share."""
    if not figures.loss:
        return "none" if figures.losses_known else NO_FIGURE
    return f"{figures.loss} {percent(figures.loss_share or 0.0)}"


def _head(field: str, otherwise: Any = None) -> Callable[[RunRow], Any]:
    return lambda row: getattr(row.head, field) or otherwise


def _figure(field: str) -> Callable[[RunRow], Any]:
    return lambda row: getattr(row.figures or NO_FIGURES, field)


def _half_width(row: RunRow) -> float | None:
    found: Estimate = (row.figures or NO_FIGURES).throughput
    if found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2 / found.value


def _loss(row: RunRow) -> str | None:
    return largest_loss(row.figures) if row.figures else None


def _state(row: RunRow) -> str:
    if row.figures and row.figures.problem and not row.head.problem:
        return "no figures"
    return row.head.state


def _recorded(row: RunRow) -> str | None:
    """Return when a run began, by the clock of this place."""
    if not row.head.created_ns:
        return None
    return time.strftime("%m-%d %H:%M", time.localtime(row.head.created_ns / 1e9))


def _problem(row: RunRow) -> str:
    return row.head.problem or (row.figures or NO_FIGURES).problem


RUNS = (
    Column("", "run", _head("name"), stretches=True),
    Column("", "recorded", _recorded),
    Column("throughput_samples_per_s", "samples/s", _figure("throughput"), RATE),
    Column("", "not training", _loss, role=lambda loss: "unsure" if loss[-1] == "%" else "dim"),
    Column("", "+/-", _half_width, SHARE),
    Column("ranks", "ranks", _head("ranks"), _NUMBER_WORD),
    Column("", "state", _state, role=lambda state: _STATE_ROLES.get(state, "bad")),
    Column("efficiency_share", "efficiency", lambda row: row.efficiency, SHARE),
    Column("workload", "workload", _head("workload")),
    Column("framework", "framework", _head("framework")),
    Column("precision", "precision", _head("precision")),
    Column("batch_size", "batch", _head("batch_size"), _NUMBER_WORD),
    Column("run", None, _head("path")),
    Column("device", None, _head("device")),
    Column("state", None, _head("state")),
    Column("created_ns", None, _head("created_ns", 0), WORDS),
    Column("step_ns", None, _figure("step_ns")),
    Column("steps", None, _figure("steps")),
    Column("largest_loss", None, _figure("loss")),
    Column("largest_loss_share", None, _figure("loss_share")),
    Column("problem", None, _problem),
)
