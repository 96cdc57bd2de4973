"""The list of runs as columns of a table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from profkit.analysis.views.runs import NO_FIGURES, RunRow
from profkit.report import runs_text
from profkit.text import percent, significant
from profkit.tui.widgets.columns import Column, Columns

_STATE_ROLES: Final = {"complete": "good", "running": "accent"}


def run_columns(rows: Sequence[RunRow]) -> list[Column]:
    """Return a run's figures, its costliest loss, its state and its configuration."""
    table = Columns(rows)
    four_digits = functools.partial(significant, digits=4)
    half_widths: list[float | None] = []
    efficiencies: list[float | None] = []
    losses: list[str | None] = []
    roles: list[str] = []
    states: list[str] = []
    for row in rows:
        throughput = (row.figures or NO_FIGURES).throughput
        low, high = throughput.low, throughput.high
        half_width = None
        if low is not None and high is not None:
            half_width = (high - low) / 2 / throughput.value
        half_widths.append(half_width)
        efficiencies.append(row.efficiency.value if row.efficiency else None)
        state = row.head.state
        if row.figures and row.figures.problem and not row.head.problem:
            state = "no figures"
        states.append(state)
        if row.figures is None:
            losses.append(None)
            roles.append("")
        else:
            losses.append(runs_text.largest_loss(row.figures))
            roles.append("unsure" if row.figures.loss else "dim")
    table.text("run", lambda row: row.head.name, stretches=True)
    table.figure("ranks", lambda row: row.head.ranks)
    table.figure("samples/s", lambda row: (row.figures or NO_FIGURES).throughput.value, four_digits)
    table.columns.append(Column("+/-", half_widths, percent, right=True, searched=False))
    table.columns.append(Column("effic", efficiencies, percent, right=True, searched=False))
    table.columns.append(Column("not training", losses, roles=roles))
    table.columns.append(
        Column("state", states, role=lambda state: _STATE_ROLES.get(state, "bad"), widest=30)
    )
    table.text("workload", lambda row: row.head.workload)
    table.text("framework", lambda row: row.head.framework)
    table.text("prec", lambda row: row.head.precision)
    table.figure("batch", lambda row: row.head.batch_size)
    return table.columns
