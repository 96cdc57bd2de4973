"""The time that a run says is not spent on training, and the time about which it cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.views.run import RunView, build_run_view
from profkit.analysis.views.runs import read_figures
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.report.runs_document import largest_loss
from profkit.testing import synthetic_trace
from profkit.trace import RunManifest, Trace
from profkit.trace.files import RankFiles
from profkit.vocab import RunState, rank_folder
from tests.rules.test_log_rules import even, paddleseg


def _names(view: RunView) -> list[str]:
    return [loss.kind for loss in view.overview.losses.found]


def _import(path: Path, text: str) -> Path:
    path.write_text(text)
    (made,) = IMPORTER.read([path], Target(path.parent / "runs"))
    return made.run


def test_the_rest_of_a_log_is_not_called_unknown(tmp_path: Path) -> None:
    run = _import(tmp_path / "a.log", paddleseg(1, even(0.2, 0.05)))
    view = build_run_view(Trace.open(run))
    assert _names(view) == ["data"]
    assert view.overview.losses.missing == "the run splits its steps into data and the rest only"
    assert largest_loss(read_figures(run)) == "data 25.0 %"


def test_a_log_without_parts_of_a_step_tells_no_losses(tmp_path: Path) -> None:
    text = paddleseg(1, even(0.2, 0.05)).replace("reader_cost: 0.05000, ", "")
    run = _import(tmp_path / "a.log", text)
    view = build_run_view(Trace.open(run))
    assert _names(view) == []
    assert view.overview.losses.missing == "the run does not split its steps"
    assert largest_loss(read_figures(run)) == "-"


def test_a_run_with_phases_tells_all(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", phase_ns={"data": 9_000_000})
    view = build_run_view(Trace.open(run))
    assert _names(view)[0] == "data"
    assert view.overview.losses.missing == ""
    assert largest_loss(read_figures(run)).startswith("data ")


def test_few_steps_tell_no_losses(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=6)
    view = build_run_view(Trace.open(run))
    assert _names(view) == []
    assert view.overview.losses.missing == "intervals need 3 more steps"
    assert largest_loss(read_figures(run)) == "-"


def test_rare_work_is_told_although_its_interval_begins_at_zero(tmp_path: Path) -> None:
    """Every twentieth step also evaluates and saves, for as long as three others take."""
    step, ms = np.arange(50), 1_000_000
    rare = step % 20 == 19
    ends = np.cumsum(np.where(rare, 40, 10)) * ms
    starts = np.append(0, ends[:-1])
    files = RankFiles(tmp_path / rank_folder(0), 0)
    spans: dict[str, Any]
    for phase, which, first, last in (
        ("forward", step, starts, starts + 10 * ms),
        ("other", step[rare], starts + 10 * ms, ends),
    ):
        spans = {"step": which, "depth": which * 0, "thread": ["main"] * len(which)}
        spans |= dict.fromkeys(("phase", "name"), [phase] * len(which))
        files.write("spans", spans | {"start_ns": first[which], "end_ns": last[which]})
    steps: dict[str, Any] = {"step": step, "start_ns": starts, "end_ns": ends}
    files.write("steps", steps | {"sample_count": step * 0 + 8, "instrumented": step >= 0})
    files.close()
    RunManifest(workload="job", state=RunState.COMPLETE).write(tmp_path)
    view = build_run_view(Trace.open(tmp_path))
    (other,) = (part for part in view.parts if part.name == "other")
    assert other.share.low == 0
    assert [(loss.kind, loss.share) for loss in view.overview.losses.found] == [
        ("other", 2 * 30 / 460)
    ]
