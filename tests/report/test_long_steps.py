"""The section about the few steps that took far longer than the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.overview import Overview, build_overview
from profkit.report.long_steps_section import long_steps_section
from profkit.report.overview_document import overview
from profkit.testing.series import Marked, series_trace
from profkit.trace import Trace
from profkit.vocab import CAPTURED_STEP, CHANGES
from tests.documents import report_json

MS = 1_000_000
STEPS = 400


def _view(folder: Path, longer_ms: Mapping[int, float], phase: str, **given: Any) -> Overview:
    """Return the overview of a run with steps of 75 ms, some of them with a longer phase."""
    noise = 1 + 0.01 * np.random.default_rng(5).standard_normal(STEPS)
    phases = {"forward": 50.0 * MS * noise, "backward": np.full(STEPS, 25.0 * MS)}
    phases["other"] = np.zeros(STEPS)
    for step, ms in longer_ms.items():
        phases[phase][step] += ms * MS
    return build_overview(Trace.open(series_trace(folder / "run", phases, **given)))


def _lines(view: Overview) -> list[tuple[str, str]]:
    lines = []
    for section in long_steps_section(view):
        if section.grid is None:
            continue
        lines += [(str(row[0]), str(row[1])) for row in section.grid.rows]
    return lines


def test_a_long_step_is_said_with_its_phase(tmp_path: Path) -> None:
    view = _view(tmp_path, {120: 7_425}, "backward")
    assert _lines(view) == [
        ("step 120", "7.50 s, 100 times a usual step; 7.45 s of it in backward")
    ]
    (row,) = report_json(view)["long_steps"]
    assert (row["step"], row["phase"], row["left_out"]) == (120, "backward", None)
    assert row["step_ms"] == pytest.approx(7_500, rel=0.01)
    assert row["usual_step_ms"] == pytest.approx(75, rel=0.01)


def test_a_long_step_whose_lines_were_captured_is_in_no_figure_and_still_said(
    tmp_path: Path,
) -> None:
    marked = [Marked(CHANGES, CAPTURED_STEP, step) for step in (119, 120)]
    view = _view(tmp_path, {120: 7_425}, "forward", marked=marked)
    ((name, words),) = _lines(view)
    assert name == "step 120"
    assert words.endswith("s of it in forward; in no figure: line capture")


def test_nothing_is_said_of_phases_that_nobody_recorded(tmp_path: Path) -> None:
    steps = np.full(STEPS, 75.0 * MS)
    steps[120] *= 100
    run = series_trace(tmp_path / "run", {"nothing that is a phase": steps})
    ((_, words),) = _lines(build_overview(Trace.open(run)))
    assert words == "7.50 s, 100 times a usual step"


def test_one_long_step_of_a_short_run_is_said(tmp_path: Path) -> None:
    steps = np.full(22, 75.0 * MS)
    steps[15] *= 20
    run = series_trace(tmp_path / "run", {"forward": steps})
    assert _lines(build_overview(Trace.open(run))) == [
        ("step 15", "1.50 s, 20.0 times a usual step; 1.50 s of it in forward")
    ]


def test_a_mean_that_a_long_step_makes_is_also_said_without_it(tmp_path: Path) -> None:
    view = _view(tmp_path, {120: 7_425}, "forward")
    others = len(view.selection.steps) - 1
    figures = {name: (value, words) for name, value, words in overview(view).figures()}
    value, words = figures["without long steps"]
    assert view.step_ns.value == pytest.approx(75 * MS + 7_425 * MS / (others + 1), rel=0.01)
    assert value.startswith(("74.", "75."))
    assert words == f"the mean of the other {others} steps"
    assert report_json(view)["step_without_long_ms"] == pytest.approx(75, rel=0.01)


@pytest.mark.parametrize(
    ("longer_ms", "given"),
    [
        ({}, {}),
        ({120: 600}, {}),  # 2 % of the time
        ({120: 7_425}, {"marked": [Marked(CHANGES, CAPTURED_STEP, 120)]}),  # in no figure
    ],
    ids=["none", "short", "left out"],
)
def test_a_mean_that_no_long_step_makes_is_said_once(
    tmp_path: Path, longer_ms: dict[int, float], given: dict[str, Any]
) -> None:
    view = _view(tmp_path, longer_ms, "forward", **given)
    assert "without long steps" not in {name for name, _, _ in overview(view).figures()}
    assert report_json(view)["step_without_long_ms"] is None


def test_the_longest_come_first_and_no_more_than_three(tmp_path: Path) -> None:
    view = _view(tmp_path, {50: 500, 90: 900, 130: 700, 170: 600}, "other")
    assert [name for name, _ in _lines(view)] == ["step 90", "step 130", "step 170"]


@pytest.mark.parametrize(
    "longer_ms",
    [
        {},
        {120: 200},  # less than five times the usual
        {3: 7_000},  # in the warm-up
        dict.fromkeys(range(15, STEPS, 20), 1_000.0),  # how the job runs
    ],
    ids=["none", "somewhat longer", "warm-up", "each 20 steps"],
)
def test_no_step_is_called_long_that_is_not(tmp_path: Path, longer_ms: dict[int, float]) -> None:
    assert _lines(_view(tmp_path, longer_ms, "other")) == []
