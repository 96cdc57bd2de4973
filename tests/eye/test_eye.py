"""Lines of real jobs, which a process outside of them samples."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.eye.announcing import FOLDER
from profkit.trace import verify
from profkit.trace.reader import find_runs
from profkit.vocab import EYE, LOADER_WORKER, Integrity
from tests.instrument.test_run_command import PROFKIT_RUN
from tests.recorded import PATIENCE_S, newest_run, run_to_end

JOB = Path(__file__).parents[1] / "collectors" / "jobs" / "slow_workers.py"


def _line_of(words: str) -> int:
    lines = JOB.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if f"# {words}" in line)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_slow_line_of_the_workers_is_named_by_default(tmp_path: Path, start: str) -> None:
    run_to_end([*PROFKIT_RUN, sys.executable, JOB, 200, start], tmp_path)
    trace = newest_run(tmp_path)
    found = build_overview(trace).worker_lines
    assert found is not None
    assert found.workers == 2
    first = found.lines[0].place
    assert (Path(first.file).name, first.line) == (JOB.name, _line_of("slow in a worker"))
    assert set(trace.worker_stacks["thread"].to_pylist()) == {
        f"{LOADER_WORKER}{number}" for number in (0, 1)
    }
    stacks = trace.table("stacks")
    assert set(stacks["state"].to_pylist()) <= set("RSDZT")
    shares = stacks["waited_share"].drop_null().to_numpy()
    assert len(shares) > stacks.num_rows / 2  # a worker that only slept has none
    assert ((shares >= 0) & (shares <= 1)).all()
    assert verify(trace.path).state is Integrity.COMPLETE


def test_without_lines_nothing_is_sampled(tmp_path: Path) -> None:
    command = [*PROFKIT_RUN[:-1], "--lines", "off", "--", sys.executable, JOB, 40, "fork"]
    run_to_end(command, tmp_path)
    trace = newest_run(tmp_path)
    assert not trace.stacks.num_rows
    assert not (trace.path / FOLDER).exists()


def test_the_job_does_not_notice_that_the_eye_is_killed(tmp_path: Path) -> None:
    command = [*PROFKIT_RUN, sys.executable, str(JOB), "200", "fork"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
        deadline = time.monotonic() + PATIENCE_S
        while not list((tmp_path / "traces").rglob(f"r00000/{EYE}")):  # a worker may be first
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            if "profkit.eye" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(int(child), signal.SIGKILL)
        job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0
    (run,) = find_runs(tmp_path / "traces")
    found = verify(run)
    assert found.state is Integrity.ENDED_EARLY
    assert "the lines of rank 0 wrote no end record" in " ".join(found.reasons)
    assert (run / "r00000" / EYE).is_dir()
