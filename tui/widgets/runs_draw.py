"""The list of runs as columns of a table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from profkit.analysis.estimate import Estimate
from profkit.analysis.views.runs import NO_FIGURES, RunRow
from profkit.report import runs_text
from profkit.text import percent, significant
from profkit.tui.widgets.columns import Column, Columns

_STATE_ROLES: Final = {"complete": "good", "running": "accent"}


def run_columns(rows: Sequence[RunRow]) -> list[Column]:
    """Return a run's figures, its costliest finding, its state and its configuration."""
    table = Columns(rows)
    four_digits = functools.partial(significant, digits=4)
    table.text("run", lambda row: row.head.name, stretches=True)
    table.figure("ranks", lambda row: row.head.ranks)
    table.figure("samples/s", lambda row: _throughput(row).value, four_digits)
    table.figure("+/-", lambda row: _half_width(_throughput(row)), percent)
    efficiencies: list[float | None] = []
    findings: list[str | None] = []
    roles: list[str] = []
    for row in rows:
        efficiencies.append(row.efficiency.value if row.efficiency else None)
        if row.figures is None:
            findings.append(None)
            roles.append("")
        else:
            findings.append(runs_text.finding(row.figures))
            roles.append("unsure" if row.figures.finding else "dim")
    table.columns.append(Column("effic", efficiencies, percent, right=True, searched=False))
    table.columns.append(Column("top finding", findings, roles=roles))
    table.text("state", _state, role=lambda state: _STATE_ROLES.get(state, "bad"), widest=30)
    table.text("workload", lambda row: row.head.workload)
    table.text("framework", lambda row: row.head.framework)
    table.text("prec", lambda row: row.head.precision)
    table.figure("batch", lambda row: row.head.batch_size)
    return table.columns


def _throughput(row: RunRow) -> Estimate:
    return (row.figures or NO_FIGURES).throughput


def _half_width(found: Estimate) -> float | None:
    """Return half the interval as a share of the value."""
    if found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2 / found.value


def _state(row: RunRow) -> str:
    if row.figures and row.figures.problem and not row.head.problem:
        return "no figures"
    return row.head.state
