"""A line that takes longer since a change of the run, in the row that holds its phase."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from profkit.analysis.line_changes import LineChange
from profkit.analysis.run_halves import cut_at
from profkit.analysis.stack_samples import Place
from profkit.explain.explained import explain
from profkit.explain.rules import slow_line
from profkit.explain.rules.base import Case, Cause
from profkit.frame.estimate import Estimate
from profkit.testing.series import series_trace
from profkit.trace import Trace

MS = 1_000_000


def _estimate(ms: float) -> Estimate:
    return Estimate(ms * MS, (ms - 1) * MS, (ms + 1) * MS)


@pytest.mark.parametrize(("phase", "row"), [("data", "input"), ("forward", "forward")])
def test_a_line_of_any_phase_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, row: str
) -> None:
    lengths = {"data": np.full(400, 20.0 * MS), "forward": np.full(400, 50.0 * MS)}
    lengths = {name: each + np.arange(400) % 7 * 1e5 for name, each in lengths.items()}
    lengths[phase][200:] += 12 * MS
    asked: dict[str, float] = {}
    times = _estimate(3), _estimate(15), _estimate(12)
    line = LineChange(phase, Place("job.py", 7, "read"), *times, is_sure=True)

    def compare(before: Any, after: Any, *, same_code: bool, only: Mapping[str, float]) -> Any:
        asked.update(only)
        return SimpleNamespace(lines=(line,) if phase in only else ())

    found: list[Cause | None] = []
    find = slow_line.find

    def note(case: Case) -> Cause | None:
        found.append(find(case))
        return found[-1]

    monkeypatch.setattr(slow_line, "code_of", lambda evidence: SimpleNamespace(folder=""))
    monkeypatch.setattr(slow_line, "compare_lines", compare)
    monkeypatch.setattr(slow_line, "find", note)
    explain(*cut_at(Trace.open(series_trace(tmp_path / "run", lengths)), 200))
    assert list(asked) == [phase]
    cause = next(filter(None, found))  # the rule is also asked what the target does better
    assert cause.rows == (row,)
    assert cause.detail.startswith("job.py:7")
    assert f"{phase}: job.py:7" in cause.evidence


@pytest.mark.parametrize(("line_ms", "kind"), [(11, "slow_line"), (4, "time_outside_phases")])
def test_a_line_that_takes_most_of_the_time_outside_phases_is_named_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_ms: int, kind: str
) -> None:
    lengths = {name: np.full(400, 20.0 * MS) for name in ("forward", "no phase", "backward")}
    lengths = {name: each + np.arange(400) % 7 * 1e5 for name, each in lengths.items()}
    lengths["no phase"][200:] += 12 * MS
    lengths["no phase"] -= 15 * MS
    times = _estimate(1), _estimate(1 + line_ms), _estimate(line_ms)
    line = LineChange("unknown", Place("masks.py", 7, "make"), *times, is_sure=True)

    def compare(before: Any, after: Any, *, same_code: bool, only: Mapping[str, float]) -> Any:
        return SimpleNamespace(lines=(line,) if "unknown" in only else ())

    monkeypatch.setattr(slow_line, "code_of", lambda evidence: SimpleNamespace(folder=""))
    monkeypatch.setattr(slow_line, "compare_lines", compare)
    view = explain(*cut_at(Trace.open(series_trace(tmp_path / "run", lengths)), 200))
    cause = view.causes[0]
    assert (cause.kind, cause.rows) == (kind, ("unknown",))
    assert len([each for each in view.causes if each.rows]) == 1
    assert "masks.py:7 make took 1.00 ms" in cause.evidence
    assert "from forward to backward" in cause.evidence
