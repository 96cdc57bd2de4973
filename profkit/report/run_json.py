"""The JSON twin of the terminal interface's first screens: a run's figures, and a folder of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profkit.analysis.views.run import Part, RunView
from profkit.analysis.views.runs import NO_FIGURES, RunRow
from profkit.report import as_json
from profkit.report.view_json import of


def run(view: RunView) -> dict[str, Any]:
    """What `profkit tui RUN --screen overview --json` prints: all of `profkit report --json`, and what the screen adds."""
    return as_json.overview(view.overview) | {
        "wall_ns_per_step": view.wall_ns,
        "parts": [_part(part) for part in view.parts],
        "hidden": [_part(part) for part in view.hidden],
        "steps_apart": [
            {
                "reason": each.reason,
                "steps": each.steps,
                "excess_ns_per_step_of_the_run": each.excess_ns,
            }
            for each in view.apart
        ],
        "findings": [
            {
                "kind": each.kind,
                "cost_ns_per_step": of(each.step_ns),
                "share": each.share,
                "evidence": each.evidence,
            }
            for each in view.losses
        ],
        "step_times_ns": [of(point) for point in view.points],
    }


def _part(part: Part) -> dict[str, Any]:
    figures = {"name": part.name, "ns_per_step": of(part.step_ns), "share": of(part.share)}
    return figures | ({"inside": [_part(each) for each in part.inside]} if part.inside else {})


def runs(rows: Sequence[RunRow]) -> dict[str, Any]:
    """What `profkit tui FOLDER --json` prints."""
    return {"runs": [_row(row) for row in rows]}


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
        "efficiency_share": None if row.efficiency is None else of(row.efficiency),
        "top_finding": figures.finding or None,
        "top_finding_share": figures.finding_share,
        "problem": head.problem or figures.problem or None,
    }
