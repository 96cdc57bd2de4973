"""A static Paddle program trains whole steps, and no figure is invented."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker
from profkit.testing import FakeClock
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "jobs" / "static_paddle.py"


def test_each_run_of_the_training_program_is_a_step_and_its_inside_is_unknown(
    tmp_path: Path,
) -> None:
    pytest.importorskip("paddle")
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")
    } | {"OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "profkit",
        "run",
        "-o",
        str(tmp_path),
        "--",
        sys.executable,
        "-W",
        "ignore",
        str(JOB),
    ]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("trains a program of Paddle's static graph") == 1
    trace = Trace.open(find_runs(tmp_path)[-1])
    assert trace.steps["sample_count"].to_pylist() == [6] * 12, (
        "evaluations and initial values are no steps"
    )
    assert trace.spans.num_rows == 0
    view = build_overview(trace)
    assert any("static graph" in line for line in view.quality)
    assert {phase.name for phase in view.phases} == {"unknown"}


class Loop:
    """A loop that runs programs of 100 ns."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sink = MemorySink()
        self.opened = 0
        self.tracker = Tracker(
            Recorder(self.sink, clock=self.clock), on_training=self._open, clock=self.clock
        )

    def _open(self) -> None:
        self.opened += 1

    def run_program(self, samples: int = 4, *, failed: bool = False) -> None:
        begun = self.tracker.begin_program("paddle")
        self.clock.advance(100)
        if begun:
            self.tracker.end_program(samples, failed=failed)

    def steps(self) -> list[tuple[int, int]]:
        """Length and samples of each step."""
        self.tracker.finish()
        return [(row[2] - row[1], row[3]) for row in self.sink.rows["steps"]]


def test_steps_tile_the_loops_time() -> None:
    loop = Loop()
    for _ in range(3):
        loop.run_program()
        loop.clock.advance(20)
    assert loop.steps() == [(100, 4), (120, 4), (120, 4)]
    assert (loop.opened, loop.tracker.framework) == (1, "paddle")


def test_a_program_that_fails_is_no_step_and_the_next_one_is() -> None:
    loop = Loop()
    loop.run_program(failed=True)
    loop.run_program()
    assert loop.steps() == [(200, 4)]


def test_inside_a_step_that_the_loop_delimits_it_is_a_part_of_that_step() -> None:
    loop = Loop()
    loop.tracker.begin_explicit_step()
    loop.run_program()
    loop.run_program()
    loop.tracker.end_explicit_step(8)
    assert loop.steps() == [(200, 8)]
    assert loop.opened == 1


def test_batches_of_a_loader_count_where_the_program_is_fed_none() -> None:
    loop = Loop()
    for _ in range(2):
        span = loop.tracker.begin_data()
        loop.clock.advance(30)
        loop.tracker.end_data(span, 5)
        loop.run_program(samples=0)
    assert [samples for _, samples in loop.steps()] == [5, 5]
    assert [(row[1], row[6] - row[5]) for row in loop.sink.rows["spans"]] == [
        ("data", 30),
        ("data", 30),
    ]
