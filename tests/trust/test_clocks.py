"""Clocks that disagree or are set during a job change no figure.

No figure depends on the order of times on two hosts, or on the time of day.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.overview import build_overview
from profkit.clock import Anchor
from profkit.explain.explained import explain
from profkit.instrument.recorder import Recorder
from profkit.schema import SCHEMAS
from profkit.show.json import dumps
from profkit.testing import FakeClock, OpenStep, synthetic_trace
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, verify
from profkit.trace.files import RankFiles
from profkit.vocab import RUN_FILE, TABLES, Integrity, RunState, rank_folder
from tests.documents import gap_json, report_json

MS = 1_000_000
STEP_MS = 52.0
Clock = Callable[[Any], Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(
        tmp_path_factory.mktemp("runs") / "run",
        ranks=2,
        steps=80,
        rank_phase_ns={1: {"forward": 17 * MS}},
    )


def _on_another_clock(run: Path, copy: Path, clock: Clock) -> Path:
    """The run with all times of rank 1 read off another clock."""
    copy.mkdir()
    (copy / RUN_FILE).write_bytes((run / RUN_FILE).read_bytes())
    for rank in Trace.open(run).ranks:
        files = RankFiles(copy / rank_folder(rank.rank), rank.rank)
        RankManifest.read(rank.folder).write(files.folder)
        for table in TABLES:
            rows = rank.table(table) if table != "strings" else None
            if rows is not None and rows.num_rows:
                files.write(
                    table,
                    {
                        name: _told_by(clock if rank.rank else _true, rows[name])
                        for name in SCHEMAS[table].names[1:]
                    },
                )
        files.close()
    return copy


def _told_by(clock: Clock, column: Any) -> Any:
    is_time = (
        str(column.type) == "int64"
        and column.null_count == 0
        and len(column)
        and column[0].as_py() > 10**9
    )
    return clock(column.to_numpy()).astype(np.int64) if is_time else column.combine_chunks()


def _true(times: Any) -> Any:
    return times


MEASURED = ("throughput_samples_per_s", "step_ms", "phases", "exchange", "verdict")

CLOCKS: dict[str, tuple[Clock, float]] = {
    "50 ms ahead": (lambda times: times + 50 * MS, 0.0),
    "50 ms behind": (lambda times: times - 50 * MS, 0.0),
    "100 ppm too fast": (lambda times: times + (times - times.min()) // 10_000, 1e-3),
}
"""The clock of a host, and the tolerance of figures.

Bounds come from resamples, so the tolerance is ten times the error of the clock.
"""


@pytest.mark.parametrize(("clock", "tolerance"), CLOCKS.values(), ids=CLOCKS)
def test_figures_do_not_hang_on_the_hosts_agreeing(
    run: Path, tmp_path: Path, clock: Clock, tolerance: float
) -> None:
    own, other = _figures(run), _figures(_on_another_clock(run, tmp_path / "run", clock))
    names = MEASURED if tolerance else own  # what is exact is equal in every part
    _compare({name: own[name] for name in names}, {name: other[name] for name in names}, tolerance)


def _figures(run: Path) -> Any:
    trace = Trace.open(run)
    own = json.loads(dumps(report_json(build_overview(trace))))
    return {**own, "run": "", "explained": json.loads(dumps(gap_json(explain(trace, trace))))}


STEP_IN = {"_ns": 1e6 * STEP_MS, "_ms": STEP_MS}
"""About one step in the unit that a key names; small parts may be off by a share of it."""


def _compare(left: Any, right: Any, tolerance: float, whole: float = 1.0) -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for name in left:
            _compare(
                left[name],
                right[name],
                tolerance,
                next((step for unit, step in STEP_IN.items() if unit in name), whole),
            )
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            _compare(one, other, tolerance, whole)
    elif isinstance(left, float):
        assert right == pytest.approx(left, rel=tolerance, abs=tolerance * whole)
    else:
        assert left == right


HOUR_NS = 3_600_000_000_000


def test_a_clock_that_is_set_while_a_job_runs_moves_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day goes back an hour in the middle; the run says so, and no step changes."""
    left, right = (
        _record(tmp_path / name, set_by_ns, monkeypatch)
        for name, set_by_ns in (("left", 0), ("set", -HOUR_NS))
    )
    assert [verify(run).state for run in (left, right)] == [Integrity.COMPLETE] * 2
    told, again = (
        json.loads(dumps(report_json(build_overview(Trace.open(run))))) for run in (left, right)
    )
    assert {name: told[name] for name in MEASURED} == {name: again[name] for name in MEASURED}
    drifts = [_drifts(run) for run in (left, right)]
    assert [min(each) for each in drifts] == [0, -HOUR_NS]
    assert [max(each) for each in drifts] == [0, 0]


def _record(run: Path, set_by_ns: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A minute of steps of a second, on a clock that the test moves."""
    clock = FakeClock(now_ns=10**12)
    middle = clock() + 30 * 10**9

    def read(at_ns: int) -> Anchor:
        return Anchor(at_ns, at_ns + (set_by_ns if at_ns > middle else 0), 0)

    monkeypatch.setattr("profkit.trace.writer.read_anchor", lambda now: read(now()))
    writer = RankWriter(
        run, RankManifest(0, "here", 1, "cpu", read(clock())), interval_s=0.001, clock=clock
    )
    recorder = Recorder(writer, clock=clock)
    recorder.begin()
    for step in range(60):
        with OpenStep(recorder, 8), recorder.phase("forward"):
            clock.advance(10**9 + step % 3 * MS)
        _wait_until(lambda: writer._next_anchor_ns > clock())
    recorder.stop()
    writer.close(timeout_s=60)
    RunManifest(workload="clock", state=RunState.COMPLETE).write(run)
    return run


def _wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def _drifts(run: Path) -> list[float]:
    return [
        row["value"]
        for row in Trace.open(run).samples.to_pylist()
        if row["metric"] == "realtime_drift_ns"
    ]
