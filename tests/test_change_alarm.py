"""The line about a change that `profkit run` prints while a job runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from profkit.run.change_alarm import ChangeAlarm
from profkit.testing.series import series_trace
from profkit.trace.tail import RunTail

MS = 1_000_000


def _look(folder: Path, forward: npt.NDArray[np.float64], alarm: ChangeAlarm) -> list[str]:
    phases = {"data": np.full(len(forward), 5.0 * MS), "forward": 50 * MS * forward}
    run = series_trace(folder / str(len(forward)), phases, ranks=2)
    return list(alarm.find(RunTail(run).look()))


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
