"""The time that a run says is not spent on training, and the time about which it cannot tell."""

from __future__ import annotations

from pathlib import Path

from profkit.analysis.views.run import RunView, build_run_view
from profkit.analysis.views.runs import read_figures
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.report.runs_text import largest_loss
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.rules.test_log_rules import even, paddleseg


def _names(view: RunView) -> list[str]:
    return [loss.kind for loss in view.losses]


def _import(path: Path, text: str) -> Path:
    path.write_text(text)
    (made,) = IMPORTER.read([path], Target(path.parent / "runs"))
    return made.run


def test_the_rest_of_a_log_is_not_called_unknown(tmp_path: Path) -> None:
    run = _import(tmp_path / "a.log", paddleseg(1, even(0.2, 0.05)))
    view = build_run_view(Trace.open(run))
    assert _names(view) == ["input"]
    assert view.losses_missing == "the run splits its steps into input and the rest only"
    assert largest_loss(read_figures(run)) == "input 25.0 %"


def test_a_log_without_parts_of_a_step_tells_no_losses(tmp_path: Path) -> None:
    text = paddleseg(1, even(0.2, 0.05)).replace("reader_cost: 0.05000, ", "")
    run = _import(tmp_path / "a.log", text)
    view = build_run_view(Trace.open(run))
    assert _names(view) == []
    assert view.losses_missing == "the run does not split its steps"
    assert largest_loss(read_figures(run)) == "-"


def test_a_run_with_phases_tells_all(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", phase_ns={"data": 9_000_000})
    view = build_run_view(Trace.open(run))
    assert _names(view)[0] == "input"
    assert view.losses_missing == ""
    assert largest_loss(read_figures(run)).startswith("input ")


def test_few_steps_tell_no_losses(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=6)
    view = build_run_view(Trace.open(run))
    assert _names(view) == []
    assert view.losses_missing == "intervals need 3 more steps"
    assert largest_loss(read_figures(run)) == "-"
