"""The JSON of the interface's first screens: a run's figures, and a folder of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profkit.analysis.views.run import Part, RunView
from profkit.analysis.views.runs import NO_FIGURES, RunRow
from profkit.report import as_json
from profkit.report.ledger_json import steps_apart
from profkit.report.view_json import of


def run(view: RunView) -> dict[str, Any]:
    """Return the JSON of the screen `overview`: that of `profkit report`, and what it adds."""
    findings = []
    for loss in view.losses:
        finding = {"kind": loss.kind, "cost_ns_per_step": of(loss.step_ns)}
        findings.append(finding | {"share": loss.share, "evidence": loss.evidence})
    return as_json.overview(view.overview) | {
        "wall_ns_per_step": view.wall_ns,
        "parts": list(map(_part, view.parts)),
        "hidden": list(map(_part, view.hidden)),
        "steps_apart": steps_apart(view.apart),
        "findings": findings,
        "findings_missing": view.losses_missing or None,
        "step_times_ns": of(view.points),
    }


def _part(part: Part) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "name": part.name,
        "ns_per_step": of(part.step_ns),
        "share": of(part.share),
    }
    if part.host_ns is not None:
        figures["host_ns_per_step"] = part.host_ns
    if part.inside:
        figures["inside"] = list(map(_part, part.inside))
    return figures


def runs(rows: Sequence[RunRow]) -> dict[str, Any]:
    """Return what `profkit tui FOLDER --json` prints."""
    return {"runs": list(map(_row, rows))}


def _row(row: RunRow) -> dict[str, Any]:
    head, figures = row.head, row.figures or NO_FIGURES
    return {
        "run": str(head.path),
        "workload": head.workload,
        "framework": head.framework,
        "ranks": head.ranks,
        "device": head.device,
        "precision": head.precision,
        "batch_size": head.batch_size,
        "state": head.state,
        "created_ns": head.created_ns,
        "throughput_samples_per_s": of(figures.throughput),
        "step_ns": of(figures.step_ns),
        "steps": figures.steps,
        "efficiency_share": of(row.efficiency),
        "top_finding": figures.loss or None,
        "top_finding_share": figures.loss_share,
        "problem": head.problem or figures.problem or None,
    }
