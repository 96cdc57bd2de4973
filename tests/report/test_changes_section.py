"""The section about changes during a run: bursts that are alike share a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from profkit.analysis.overview import Overview, build_overview
from profkit.report.changes_section import MOST_ROWS, changes_section
from profkit.testing.series import series_trace
from profkit.trace import Trace
from tests.documents import report_json

MS = 1_000_000


def _view(folder: Path, rises: npt.NDArray[np.float64]) -> Overview:
    """Return the overview of a run whose forward takes 50 ms, and longer by these shares."""
    noise = 0.01 * np.random.default_rng(5).standard_normal(len(rises))
    forward = 50.0 * MS * np.exp(noise) * (1 + rises)
    phases = {"forward": forward, "backward": np.full(len(rises), 25.0 * MS)}
    return build_overview(Trace.open(series_trace(folder / "run", phases)))


def _rows(view: Overview) -> list[tuple[str, str]]:
    section, _ = changes_section(view)
    assert section.grid is not None
    return [(str(row[0]), str(row[1])) for row in section.grid.rows]


def test_bursts_to_the_same_level_share_a_line(tmp_path: Path) -> None:
    rises = np.zeros(1_000)
    for at, steps in ((200, 40), (400, 30), (600, 60), (800, 30)):
        rises[at : at + steps] = 0.4
    view = _view(tmp_path, rises)
    assert len(report_json(view)["changes"]) == 4, "the figures of each are still there"
    rows = _rows(view)
    assert [kind for kind, _ in rows] == ["burst", ""]
    assert rows[0][1].startswith("from step 200")
    said = "3 more bursts to this level, of 30 to 60 steps, between step 400 and step 829"
    assert rows[1][1] == said


def test_bursts_to_other_levels_and_steps_have_their_own_lines(tmp_path: Path) -> None:
    rises = np.zeros(1_000)
    rises[200:240], rises[400:440], rises[600:] = 0.4, 1.0, 0.4
    rows = _rows(_view(tmp_path, rises))
    assert [kind for kind, _ in rows] == ["burst", "burst", "step"]


def test_many_changes_are_counted_by_what_is_not_shown(tmp_path: Path) -> None:
    rises = np.repeat(np.arange(14) * 0.3, 100)
    view = _view(tmp_path, rises)
    found = len(view.changes)
    assert found > MOST_ROWS
    section, _ = changes_section(view)
    assert f"{found - MOST_ROWS} more change" in " ".join(section.notes)
