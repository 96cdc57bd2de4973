"""Stacks of loader workers and of single ranks in real jobs, also in jobs that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.stacks import FEWEST_SAMPLES
from profkit.collectors import _worker_stacks
from profkit.explain.explained import explain
from profkit.instrument.loading.ring import FOLDER_BYTES, Ring
from profkit.instrument.loading.watching import WorkerWatch
from profkit.run.choosing import Choice
from profkit.trace import verify
from profkit.trace.reader import find_ranks
from profkit.vocab import LINES_SUFFIX, LOADER_WORKER, WORKER_STACKS
from tests.collectors.test_glance import hold, let_go, needs_glance
from tests.instrument.test_run_command import PROFKIT_RUN, TORCHRUN
from tests.recorded import PATIENCE_S, newest_run, run_to_end

JOBS = Path(__file__).parent / "jobs"
WORKERS_JOB, RANKS_JOB = JOBS / "slow_workers.py", JOBS / "late_line.py"
PADDLE_JOB = JOBS / "slow_workers_paddle.py"
STEPS = 120
SLOW_NS = 2 * 20e6
"""What a batch of two costs its worker."""


def _train(folder: Path, *words: object, stacks: str = "workers") -> str:
    command = [*PROFKIT_RUN[:-1], "--stacks", stacks, "--"] if stacks else []
    return run_to_end([*command, *words], folder)


def _line_of(job: Path, words: str) -> int:
    lines = job.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if f"# {words}" in line)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_slow_line_of_the_workers_is_named(tmp_path: Path, start: str) -> None:
    losses = _train(tmp_path, sys.executable, WORKERS_JOB, STEPS, start)
    trace = newest_run(tmp_path)
    found = build_overview(trace).worker_lines
    assert found is not None
    assert found.workers == 2
    first = found.lines[0]
    assert first.place.file.endswith("slow_workers.py")
    assert first.place.line == _line_of(WORKERS_JOB, "slow in a worker")
    assert first.place.function.endswith("__getitem__")
    # On a busy machine, samples come late, and are not counted for any line.
    assert 0.5 * SLOW_NS < first.step_ns.value < 1.3 * SLOW_NS
    assert found.sampler_share < 0.02
    assert not trace.worker_stacks.broken
    assert not [reason for reason in verify(trace.path).reasons if WORKER_STACKS in reason]
    files = list((trace.ranks[0].folder / WORKER_STACKS).iterdir())
    assert len(files) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    if start == "fork":
        bare = _train(tmp_path / "bare", sys.executable, WORKERS_JOB, STEPS, start, stacks="")
        assert bare == losses


@pytest.mark.parametrize("kind", ["plain", "shared", "stream"])
def test_the_slow_line_of_paddles_workers_is_named(tmp_path: Path, kind: str) -> None:
    _train(tmp_path, sys.executable, PADDLE_JOB, STEPS, kind)
    found = build_overview(newest_run(tmp_path)).worker_lines
    assert found is not None
    assert found.workers == 2
    first = found.lines[0]
    assert first.place.file.endswith(PADDLE_JOB.name)
    assert first.place.line == _line_of(PADDLE_JOB, "slow in a worker")
    assert 0.5 * SLOW_NS < first.step_ns.value < 1.3 * SLOW_NS


@needs_glance
@pytest.mark.measured
def test_a_line_of_a_worker_that_holds_the_interpreter_is_seen(tmp_path: Path) -> None:
    """It holds it for 2 ms, and releases it in another line."""
    finish = _worker_stacks.sample_worker(lambda: str(tmp_path), 0, _make_batches.__code__)
    _make_batches(4.0)
    finish()
    (path,) = tmp_path.iterdir()
    lines = list(map(json.loads, path.read_text().splitlines()))
    names = {line[1]: line[4] for line in lines if line[0] == "frame"}
    samples = [line for line in lines if line[0] == "sample"]
    seen = Counter(names[stack] for _, _, _, _, stack in samples)
    assert len(samples) > 30
    assert seen["hold"] > 0.5 * len(samples)
    assert {late_ns for _, _, late_ns, _, _ in samples} == {0}


def _make_batches(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(10):
            hold()
            let_go()
        time.sleep(0.001)  # as it waits for a file


def test_without_the_choice_workers_are_not_sampled(tmp_path: Path) -> None:
    _train(tmp_path, sys.executable, WORKERS_JOB, 40, "fork", stacks="loop")
    trace = newest_run(tmp_path)
    assert trace.stacks.num_rows
    assert not list((tmp_path / "traces").rglob(f"*{LINES_SUFFIX}"))
    assert build_overview(trace).worker_lines is None


@pytest.mark.parametrize("seed", range(3))
def test_a_job_killed_at_any_moment_leaves_stacks_that_can_be_read(
    tmp_path: Path, seed: int
) -> None:
    """All processes of the job are killed at once, some time after the first samples."""
    command = [*PROFKIT_RUN[:-1], "--stacks", "workers", "--"]
    command += [sys.executable, str(WORKERS_JOB), "100000", "fork"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    ) as job:
        deadline = time.monotonic() + PATIENCE_S
        while not list((tmp_path / "traces").rglob(f"*{LINES_SUFFIX}")):
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.05)
        time.sleep(4 + 2 * random.Random(seed).random())
        os.killpg(job.pid, signal.SIGKILL)
    trace = newest_run(tmp_path)
    samples = trace.worker_stacks
    assert set(samples.stacks["thread"].to_pylist()) == {f"{LOADER_WORKER}{n}" for n in (0, 1)}
    assert samples.stacks.num_rows > FEWEST_SAMPLES
    assert samples.broken <= 2
    assert trace.stacks.num_rows > FEWEST_SAMPLES
    view = build_overview(trace)
    assert view.code is not None
    assert not view.code.lost
    assert view.worker_lines is not None
    assert not view.worker_lines.lost


@pytest.mark.alone
def test_the_line_of_the_late_rank_is_the_evidence(tmp_path: Path) -> None:
    for name, words in (("base", []), ("late", ["slow"])):
        _train(tmp_path / name, *TORCHRUN, RANKS_JOB, *words, stacks="loop")
    base, late = newest_run(tmp_path / "base"), newest_run(tmp_path / "late")
    assert len(list(find_ranks(late.path))) == 2
    line = _line_of(RANKS_JOB, "slow on one rank")
    changes = build_overview(late).rank_lines[1]
    assert changes[0].place.line == line
    assert changes[0].difference.value == pytest.approx(30e6, rel=0.3)
    causes = {cause.kind: cause for cause in explain(base, late).causes}
    assert f"late_line.py:{line} augment" in causes["late_rank"].evidence


def test_the_choice_of_stacks() -> None:
    def chosen(stacks: str, collect: str = "") -> Choice:
        return Choice.parse(collect, "", operators=False, stacks=stacks)

    assert chosen("").collectors is None
    assert not chosen("").of_workers
    assert set(chosen("loop").collectors or ()) == {"usual", "stacks"}
    assert not chosen("loop").of_workers
    assert chosen("workers").of_workers
    assert set(chosen("workers", "none").collectors or ()) == {"stacks"}
    assert set(chosen("loop", "host").collectors or ()) == {"host", "stacks"}
    assert Choice.read({"PROFKIT_STACKS": "workers"}).of_workers
    assert Choice.read({"PROFKIT_STACKS": "other"}).collectors == ()


def test_a_worker_whose_rank_never_trains_says_once_that_nothing_is_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_worker_stacks, "MOST_WAITING", 2)
    finish = _worker_stacks.sample_worker(lambda: "", 0, _train.__code__)
    time.sleep(1.5)
    finish()
    (record,) = caplog.records
    assert "the stacks of a loader worker are not stored: its rank did not train" in record.message


def test_a_folder_that_workers_cannot_be_told_is_said(caplog: pytest.LogCaptureFixture) -> None:
    watch = WorkerWatch(lambda folder, worker, loop: lambda: None)
    ring = Ring.create(1, 1)
    watch.follow(ring)
    watch.publish("/run")
    assert (caplog.records, ring.stacks_folder()) == ([], "/run")
    watch.publish("/" + "x" * FOLDER_BYTES)
    assert "the path is too long" in caplog.records[0].message
    assert ring.stacks_folder() is None
