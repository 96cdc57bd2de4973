"""The line about a change that `profkit run` prints while a job runs."""

from __future__ import annotations

import dataclasses
import queue
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from profkit.run.change_alarm import ChangeAlarm
from profkit.testing.series import Compiled, Marked, series_trace
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace
from profkit.trace.tail import Latest, RunTail
from profkit.vocab import (
    CAPTURED_STEP,
    CHANGES,
    KERNELS,
    WINDOW_STEP,
    EventKind,
)

MS = 1_000_000
PATIENCE_S = 60


def _look(folder: Path, forward: npt.NDArray[np.float64], alarm: ChangeAlarm) -> list[str]:
    phases = {"data": np.full(len(forward), 5.0 * MS), "forward": 50 * MS * forward}
    run = series_trace(folder / str(len(forward)), phases, ranks=2)
    return list(alarm.find(RunTail(run, marks=True).look()))


def _factors(count: int) -> npt.NDArray[np.float64]:
    forward = np.exp(0.02 * np.random.default_rng(0).standard_normal(count))
    forward[200:] *= 1.3
    forward[400:] /= 1.3
    return np.asarray(forward)


def test_each_change_is_said_once_and_soon(tmp_path: Path) -> None:
    alarm = ChangeAlarm(tmp_path, lambda line: None)
    assert _look(tmp_path, _factors(199), alarm) == []
    (line,) = _look(tmp_path, _factors(220), alarm)
    assert line.startswith("since step 200 (")
    assert "forward +1" in line
    assert _look(tmp_path, _factors(330), alarm) == []
    (line,) = _look(tmp_path, _factors(420), alarm)
    assert line.startswith("since step 400 (")
    assert "less time" in line


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    forward = np.exp(0.03 * np.random.default_rng(1).standard_t(4, 900))
    assert _look(tmp_path, forward, ChangeAlarm(tmp_path, lambda line: None)) == []


def test_what_leaves_the_kept_steps_makes_no_news(tmp_path: Path) -> None:
    """Where the kept steps begin, few are left to compare with."""
    run = synthetic_trace(tmp_path / "run", ranks=1, steps=3_000, jitter=0.05, seed=1)
    latest, whole = RunTail(run, marks=True).look(), Trace.open(run)
    per_step = whole.spans.num_rows // whole.steps.num_rows
    alarm, lines = ChangeAlarm(run, lambda line: None), list[str]()
    for end in range(1_100, 3_000, 100):
        steps = whole.steps.slice(end - 1_000, 1_000)
        spans = whole.spans.slice((end - 1_000) * per_step, 1_000 * per_step)
        lines += alarm.find(dataclasses.replace(latest, steps=steps, spans=spans))
    assert lines == []


def test_a_drift_that_goes_on_is_not_said_again_and_again(tmp_path: Path) -> None:
    """A leak of weeks must leave lines for other changes: there are ten in all."""
    random, alarm, lines = np.random.default_rng(3), ChangeAlarm(tmp_path, lambda line: None), []
    steps = np.arange(4_000)
    forward = np.exp(0.03 * random.standard_normal(4_000) + 0.0003 * np.maximum(0, steps - 300))
    for count in range(800, 3_201, 240):
        lines += _look(tmp_path, forward[:count], alarm)
    assert 1 <= len(lines) <= 3
    assert all(line.startswith("from step ") for line in lines)
    forward[3_300:] *= 1.5
    *drifts, step = _look(tmp_path, forward[:3_400], alarm)
    assert len(drifts) <= 1
    assert step.startswith("since step 3,300 ")


def _own_work(kind: str, steps: list[int]) -> tuple[list[Marked], list[Compiled]]:
    if kind == "compiled":
        return [], [Compiled(0, step, EventKind.COMPILED, 20.0 * MS, "f") for step in steps]
    source, metric = {
        "kernels": (KERNELS, WINDOW_STEP),
        "captured": (CHANGES, CAPTURED_STEP),
    }[kind]
    return [Marked(source, metric, step) for step in steps], []


@pytest.mark.parametrize("kind", ["kernels", "captured", "compiled"])
@pytest.mark.parametrize("together", [1, 10, 40])
def test_what_profkit_or_a_compiler_adds_to_steps_is_no_change(
    tmp_path: Path, kind: str, together: int
) -> None:
    forward = np.exp(0.02 * np.random.default_rng(0).standard_normal(1_000))
    steps = [step for step in range(100, 1_000) if step % 100 < together]
    forward[steps] *= 3
    phases = {"data": np.full(1_000, 5.0 * MS), "forward": 50 * MS * forward}
    marked, compiled = _own_work(kind, steps)
    noticed = series_trace(tmp_path / "noticed", phases)
    own = series_trace(tmp_path / "own", phases, marked=marked, compiled=compiled)
    lines = []
    for run in (noticed, own):
        alarm = ChangeAlarm(run, lambda line: None)
        lines.append(alarm.find(RunTail(run, marks=True).look()))
    assert lines[0], "without the marks the steps are the job's own"
    assert lines[1] == []


def test_a_job_that_compiles_in_most_steps_has_changes_too(tmp_path: Path) -> None:
    forward = _factors(330)
    phases = {"data": np.full(330, 5.0 * MS), "forward": 50 * MS * forward}
    _, compiled = _own_work("compiled", list(range(330)))
    run = series_trace(tmp_path / "run", phases, compiled=compiled)
    lines = ChangeAlarm(run, lambda line: None).find(RunTail(run, marks=True).look())
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("kept", "words"),
    [(420, "forward +15"), (60, "forward +15"), (22, "not known yet")],
)
def test_a_job_with_more_spans_than_are_kept_has_changes(
    tmp_path: Path, kept: int, words: str
) -> None:
    """Of a job with many spans per step, those of the last steps are kept."""
    forward = np.exp(0.02 * np.random.default_rng(0).standard_normal(420))
    forward[400:] *= 1.3
    phases = {"data": np.full(420, 5.0 * MS), "forward": 50 * MS * forward}
    run = series_trace(tmp_path / "run", phases)
    latest = RunTail(run, marks=True).look()
    spans = latest.spans.slice(2 * (420 - kept) + 1)
    (line,) = ChangeAlarm(run, lambda line: None).find(dataclasses.replace(latest, spans=spans))
    assert line.startswith("since step 400 (")
    assert words in line
    assert ("forward" in line) != ("not known yet" in line)
    assert "unknown +" not in line


def test_a_look_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = {"data": np.full(220, 5.0 * MS), "forward": 50 * MS * _factors(220)}
    run = series_trace(tmp_path / "run", phases)
    look, failures = RunTail.look, [OSError("stale file handle")]

    def fail_once(self: RunTail) -> Latest:
        if failures:
            raise failures.pop()
        return look(self)

    monkeypatch.setattr(RunTail, "look", fail_once)
    monkeypatch.setattr("profkit.run.change_alarm.FIRST_LOOKS_S", 0.0)
    monkeypatch.setattr("profkit.run.change_alarm.LOOK_EVERY_S", 0.0)
    lines: queue.Queue[str] = queue.Queue()
    alarm = ChangeAlarm(run, lines.put)
    alarm.start()
    try:
        assert lines.get(timeout=PATIENCE_S).startswith("since step 200 (")
    finally:
        alarm.stop()
    assert not failures
