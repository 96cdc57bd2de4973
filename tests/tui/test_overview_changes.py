"""The overview screen shows changes of the step time, and compiled steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from profkit.analysis.views.run import build_run_view
from profkit.report.run_document import quality
from profkit.testing.series import Compiled, series_trace
from profkit.trace import Trace
from profkit.tui.themes import PALETTES
from profkit.tui.widgets.document import lines_of
from profkit.vocab import EventKind

MS = 1_000_000


def test_changes_and_compiled_steps_are_rows_of_the_quality(tmp_path: Path) -> None:
    forward = 50 * MS * np.exp(0.02 * np.random.default_rng(0).standard_normal(300))
    forward[150:] += 12 * MS
    forward[60] += 900 * MS
    phases = {"data": np.full(300, 5.0 * MS), "forward": forward}
    compiled = [Compiled(0, 60, EventKind.COMPILED, 900.0 * MS)]
    trace = Trace.open(series_trace(tmp_path / "run", phases, compiled=compiled))
    view = build_run_view(trace)
    lines = [str(text) for text in lines_of(quality(view), PALETTES["dark"])]
    assert any(text.startswith("change         since step 150 (") for text in lines), lines
    assert any("1 of 300 steps compiled, 900 ms in all; left out" in text for text in lines), lines
    assert "compiled" in [loss.kind for loss in view.overview.losses.found]


def test_a_step_that_takes_longer_than_all_others_is_a_part_of_all_time(tmp_path: Path) -> None:
    forward = 50 * MS * np.exp(0.02 * np.random.default_rng(0).standard_normal(300))
    forward[60] += 45_000 * MS
    phases = {"data": np.full(300, 5.0 * MS), "forward": forward}
    view = build_run_view(Trace.open(series_trace(tmp_path / "run", phases)))
    (outlier,) = [loss for loss in view.overview.losses.found if loss.kind == "outlier"]
    assert outlier.step_ns.value > 2 * view.wall_ns
    assert 0.7 < outlier.share < 0.76, "45 of about 61.5 seconds"
