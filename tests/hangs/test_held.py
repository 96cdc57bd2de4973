"""A rank whose interpreter native code holds leaves its stack; a job that was stopped goes on."""

from __future__ import annotations

import _thread
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profkit.clock import wall_ns
from profkit.hangs.evidence import Evidence, read_evidence
from profkit.hangs.status import FOLDER, RUNNING
from profkit.run.lookout import fault_stack
from profkit.run.lookout.fault_stack import FaultStack

PATIENCE_S = 60.0

JOB = """
import sys, threading, time
from pathlib import Path
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker
from profkit.rank import Rank
from profkit.run.lookout.lookout import Lookout

lookout = Lookout(Path(sys.argv[1]), Tracker(Recorder(MemorySink())), 2.0)
lookout.start(Rank(0, 1), lambda: None)
while not list(Path(sys.argv[1], "status").glob("*.rank.json")):
    time.sleep(0.01)

def turn(seconds, deep=300):
    deadline = time.monotonic() + seconds
    def dive(left):
        return dive(left - 1) if left else 0
    while time.monotonic() < deadline:
        dive(deep)

def hold():
    sum(range(400_000_000))  # keeps the interpreter's lock

{body}
lookout.stop()
print("ended well")
"""
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_one(body: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", JOB.replace("{body}", body), str(tmp_path)]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not list((tmp_path / FOLDER).glob("*.rank.json")):
            time.sleep(0.02)
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def watch(run: Path) -> Evidence:
    """Look at the run again and again, until it shows a stack or its end."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        evidence = read_evidence(run, wall_ns())
        assert evidence is not None
        has_ended = evidence.ranks[0].state != RUNNING
        if evidence.native or has_ended or time.monotonic() > deadline:
            return evidence
        time.sleep(0.1)


def test_a_call_that_holds_the_interpreter_shows_its_line(tmp_path: Path, start: Start) -> None:
    process = start("hold()")
    evidence = watch(tmp_path)
    assert evidence.native == {0}
    assert evidence.crashed == frozenset()
    stack = evidence.ranks[0].stack
    assert [frame.function for frame in stack] == ["hold", "<module>"]
    lines = [JOB[: JOB.index(text)].count("\n") + 1 for text in ("sum(", "{body}")]
    assert [frame.line for frame in stack] == lines
    assert end_of(process) == (0, "ended well\n", "")


def test_a_call_that_sleeps_in_native_code_is_not_interrupted(tmp_path: Path, start: Start) -> None:
    body = "import ctypes\nassert ctypes.PyDLL(None).sleep(5) == 0  # seconds that are left"
    process = start(body)
    assert watch(tmp_path).native == {0}
    assert end_of(process) == (0, "ended well\n", "")


def test_a_file_of_the_job_is_never_written_to(tmp_path: Path, start: Start) -> None:
    """A job that closes all descriptors gets their numbers for its own files."""
    body = """
import os
os.closerange(3, 1000)
taken = [open(Path(sys.argv[1], f"own{number}"), "w") for number in range(40)]
hold()
assert not any(Path(file.name).stat().st_size for file in taken)
"""
    assert end_of(start(body))[:2] == (0, "ended well\n")


def test_a_job_that_was_stopped_goes_on_and_is_not_looked_into(
    tmp_path: Path, start: Start
) -> None:
    """A dump that goes by the clock would begin as the job goes on, and read changing frames."""
    process = start("turn(12.0)")
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
    assert end_of(process) == (0, "ended well\n", "")
    assert not list((tmp_path / FOLDER).glob("*.stack"))


def test_a_disk_that_does_not_answer_is_not_taken_for_held_code(
    tmp_path: Path, start: Start
) -> None:
    """The thread that writes the status stands, while the job runs Python code."""
    body = "from profkit.hangs.status import Status\nimport dataclasses\n"
    body += "Status.write = lambda status, folder: time.sleep(5)\n"
    process = start(body + "turn(6.0)")
    process.wait(PATIENCE_S)
    assert process.returncode == 0
    for path in (tmp_path / FOLDER).glob("*.stack"):
        assert path.read_text() == ""


def test_a_forked_child_watches_itself_if_it_is_a_rank(tmp_path: Path, start: Start) -> None:
    """The thread in C is not in the child; a new watch starts one."""
    body = """
import os, warnings
from profkit.run.lookout.fault_stack import FaultStack
warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads
child = os.fork()
if not child:
    own = Path(sys.argv[1], "child.stack")
    FaultStack(own, 1.0).open()
    hold()
    os._exit(0 if "in hold" in own.read_text() else 5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert end_of(start(body)) == (0, "ended well\n", "")


def is_watched() -> bool:
    """Return true if this process has the thread in C."""
    for path in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            if (path / "comm").read_text() == "profkit-held\n":
                return True
    return False


def wait_for_watch(*, expected: bool) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_watched() != expected:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_watched_where_threads_are_greenlets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are patched after the start of a first watch, and before that of a second one."""
    first = FaultStack(tmp_path / "first", 0.5)
    first.open()
    wait_for_watch(expected=True)
    monkeypatch.setattr(_thread, "get_ident", lambda: 1)
    wait_for_watch(expected=False)
    second = FaultStack(tmp_path / "second", 0.5)
    second.open()
    assert not is_watched()
    first.close()
    second.close()


def test_without_the_compiled_part_nothing_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_stack, "_held", None)
    stack = FaultStack(tmp_path / "stack", 0.5)
    before = threading.active_count()
    stack.open()
    assert threading.active_count() == before
    stack.close()
    assert not (tmp_path / "stack").exists()
