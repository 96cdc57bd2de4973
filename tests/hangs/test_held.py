"""The eye names the line of a rank that stands still, holds the interpreter, or crashes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profkit.clock import wall_ns
from profkit.hangs.evidence import Evidence, read_evidence
from profkit.hangs.status import FOLDER, STACK_SUFFIX, SUFFIX, Status
from profkit.run.outside import eye_on

PATIENCE_S = 60.0

JOB = """
import ctypes, os, sys, threading, time
from pathlib import Path
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker
from profkit.rank import Rank
from profkit.run.lookout.lookout import Lookout

recorder = Recorder(MemorySink())
lookout = Lookout(Path(sys.argv[1]), Tracker(recorder), 2.0)
lookout.start(Rank(0, 1), lambda: None)
while not list(Path(sys.argv[1], "status").glob("*.rank.json")):
    time.sleep(0.01)

def waits():
    sys.stdin.read()

def holds():
    read, write = os.pipe()
    ctypes.PyDLL(None).read(read, ctypes.create_string_buffer(1), 1)  # keeps the interpreter's lock

def busy():
    while True:
        sum([number for number in range(50)])

def crashes(number):
    threading.Thread(target=busy, daemon=True).start()
    recorder.end_step(recorder.clock(), 4)
    while not lookout._catches:
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), number)

def stays_busy():
    lookout._lock.acquire()  # stands for a disk that does not answer
    turn = 0
    while Path(sys.argv[1]).exists():
        turn += 1
        [busy_too, waits_not][turn % 2]()

def busy_too():
    sum(range(1000))

def waits_not():
    sum(range(2000))

{body}
lookout.stop()
print("ended well")
"""
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a job that the eye of a run may read."""
    started: list[subprocess.Popen[str]] = []
    environment = dict(os.environ)

    def start_one(body: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", JOB.replace("{body}", body), str(tmp_path)]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                env=environment,
                start_new_session=True,
            )
        )
        return started[-1]

    with eye_on(tmp_path, environment):
        yield start_one
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def watch(run: Path, is_seen: Callable[[Evidence], bool]) -> Evidence:
    """Look at the run again and again, until it shows this."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        evidence = read_evidence(run, wall_ns())
        if evidence is not None and evidence.ranks and is_seen(evidence):
            return evidence
        time.sleep(0.05)
    pytest.fail("it was not seen")


def lines_of(*texts: str) -> list[int]:
    return [JOB[: JOB.index(text)].count("\n") + 1 for text in texts]


def places(evidence: Evidence) -> list[tuple[str, int]]:
    return [(frame.function, frame.line) for frame in evidence.ranks[0].stack]


def test_a_rank_that_stands_still_is_read_from_outside_alone(tmp_path: Path, start: Start) -> None:
    process = start("waits()")
    evidence = watch(tmp_path, lambda seen: bool(seen.ranks[0].stack))
    functions = [frame.function for frame in evidence.ranks[0].stack]
    assert functions[-2:] == ["waits", "<module>"]
    assert evidence.native == frozenset()
    (own,) = (tmp_path / FOLDER).glob(f"*{SUFFIX}")
    assert Status.read(own).stack == ()
    assert process.communicate("", timeout=PATIENCE_S) == ("ended well\n", "")


def test_a_rank_that_the_eye_leaves_reads_its_own_stack(tmp_path: Path, start: Start) -> None:
    process = start("waits()")
    watch(tmp_path, lambda seen: bool(seen.ranks[0].stack))
    (path,) = (tmp_path / FOLDER).glob(f"*{STACK_SUFFIX}")
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if "profkit.eye" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)
    path.unlink()
    evidence = watch(tmp_path, lambda seen: bool(seen.ranks[0].stack))
    assert "waits" in [frame.function for frame in evidence.ranks[0].stack]
    assert process.communicate("", timeout=PATIENCE_S) == ("ended well\n", "")


WORKER = """
import multiprocessing
from profkit.run.lookout.workers import watch_worker

class Meter:
    tasks, idle, worker = 0, False, 0

def works():
    watch_worker(Path(sys.argv[1]), Meter, lines=True)
    threading.Event().wait()

Path(sys.argv[1], "r00000").mkdir()
child = multiprocessing.get_context("fork").Process(target=works, daemon=True)
child.start()
waits()
"""


def test_a_worker_of_a_rank_that_stands_still_is_read_too(tmp_path: Path, start: Start) -> None:
    process = start(WORKER)
    evidence = watch(tmp_path, lambda seen: any(each.stack for each in seen.ranks[0].workers))
    (worker,) = evidence.ranks[0].workers
    assert "works" in [frame.function for frame in worker.stack]
    process.communicate("", timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_call_that_holds_the_interpreter_shows_its_line(tmp_path: Path, start: Start) -> None:
    process = start("holds()")
    watch(tmp_path, lambda seen: bool(seen.native))
    process.kill()
    evidence = watch(tmp_path, lambda seen: bool(seen.native))  # the files alone say it
    assert evidence.crashed == frozenset()
    numbers = lines_of("ctypes.PyDLL", "{body}")
    assert places(evidence) == list(zip(["holds", "<module>"], numbers, strict=True))


def test_a_disk_that_does_not_answer_is_not_taken_for_held_code(
    tmp_path: Path, start: Start
) -> None:
    """The thread that writes the status stands, while the job runs Python code."""
    start("stays_busy()")
    written: set[int] = set()
    while len(written) < 4:
        for path in (tmp_path / FOLDER).glob(f"*{STACK_SUFFIX}"):
            written.add(Status.read(path).written_ns)
        evidence = read_evidence(tmp_path, wall_ns())
        assert evidence is None or evidence.native == frozenset()


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGFPE])
def test_a_crash_leaves_its_line_and_ends_as_before(
    tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    process = start(f"crashes({int(number)})")
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == -number
    evidence = watch(tmp_path, lambda seen: bool(seen.crashed))
    assert places(evidence)[0] == ("crashes", *lines_of("    os.kill("))
