"""A rank that a signal ends leaves the line at which it was."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.hangs.fault_stacks import MOST_STACK_BYTES, read_fault_stack
from profkit.hangs.status import STACK_SUFFIX, SUFFIX, Status

BEGIN = """
import os, sys, threading
from pathlib import Path
from profkit.run.lookout.fault_stack import FaultStack

stack = FaultStack(Path(sys.argv[1]), 30.0)
stack.open()
thread = threading.Thread(target=stack.enable)
thread.start()
thread.join()
"""
CRASH = """
def crash():
    os.kill(os.getpid(), int(sys.argv[2]))
crash()
"""
BESIDE = """
import ctypes
def busy():
    while True:
        sum([number for number in range(50)])
threading.Thread(target=busy, daemon=True).start()
def crash():
    ctypes.CDLL(None).memset(8, 0, 1)  # releases the interpreter
crash()
"""
CHILD = """
child = os.fork()
if not child:
    os.abort()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -6
"""
OWN = """
import faulthandler
assert not faulthandler.is_enabled()
faulthandler.enable()
assert faulthandler.is_enabled()
"""


def run_script(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + script, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGFPE])
def test_a_crash_writes_the_stack_and_ends_as_before(
    tmp_path: Path, number: signal.Signals
) -> None:
    done = run_script(CRASH, tmp_path / "stack", int(number))
    assert (done.returncode, done.stderr) == (-number, "")
    text = (tmp_path / "stack").read_text()
    assert text.startswith("Fatal Python error")
    assert "in crash" in text


def test_a_crash_beside_a_thread_that_runs_shows_its_own_line(tmp_path: Path) -> None:
    done = run_script(BESIDE, tmp_path / "stack")
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
    _, _, current = (tmp_path / "stack").read_text().partition("Current thread")
    assert "in crash" in current.splitlines()[1]


def test_a_crash_of_a_child_is_not_one_of_the_rank(tmp_path: Path) -> None:
    done = run_script(CHILD, tmp_path / "stack")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "stack").read_text() == ""


def test_the_handler_of_the_job_wins(tmp_path: Path) -> None:
    done = run_script(OWN + "stack.close()" + CRASH, tmp_path / "stack", int(signal.SIGABRT))
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error" in done.stderr
    assert not (tmp_path / "stack").exists()


SWITCHED = """
import faulthandler
faulthandler.enable()
faulthandler.disable()
stack.enable()
"""
RECOVERING = """
import signal
signal.signal(signal.SIGSEGV, lambda number, frame: None)  # stands for a runtime in native code
"""


def test_the_handler_of_the_job_is_not_ours(tmp_path: Path) -> None:
    """The job switches Python's handler off, and ours still writes into our file."""
    done = run_script(SWITCHED + CRASH, tmp_path / "stack", int(signal.SIGABRT))
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    assert "in crash" in (tmp_path / "stack").read_text()


RUNTIME = """
#include <setjmp.h>
#include <signal.h>
static sigjmp_buf back;
static int *volatile nowhere;
int is_used_last;
static void recover(int number) { siglongjmp(back, 1); }
void start(void)
{
    struct sigaction action = {.sa_handler = recover};
    sigaction(SIGSEGV, &action, 0);
}
void use(void) { if (!sigsetjmp(back, 1)) *nowhere = 1; }
__attribute__((destructor)) static void end(void) { if (is_used_last) use(); }
"""
LOAD = """
import atexit, ctypes, os, sys
runtime = ctypes.CDLL(sys.argv[2])
"""
AT_END = "atexit.register(runtime.use)"
AFTER_PYTHON = "ctypes.c_int.in_dll(runtime, 'is_used_last').value = 1"
IN_CHILD = """
child = os.fork()
if not child:
    runtime.use()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("recorded", ["", BEGIN + "atexit.register(stack.close)"])
@pytest.mark.parametrize(("before", "after"), [(AT_END, ""), (AFTER_PYTHON, ""), ("", IN_CHILD)])
def test_a_runtime_that_starts_later_keeps_its_signals(
    tmp_path: Path, recorded: str, before: str, after: str
) -> None:
    (tmp_path / "runtime.c").write_text(RUNTIME)
    built = str(tmp_path / "runtime.so")
    command = ["gcc", "-shared", "-fPIC", str(tmp_path / "runtime.c"), "-o", built]
    subprocess.run(command, check=True)
    script = f"{LOAD}\n{before}\n{recorded}\nruntime.start()\n{after}"
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "stack"), built]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "stack").exists()


@pytest.mark.parametrize(("before", "is_ours"), [("", True), (RECOVERING, False)])
def test_a_runtime_that_recovers_from_crashes_keeps_its_signals(
    tmp_path: Path, before: str, *, is_ours: bool
) -> None:
    script = before + BEGIN + f"assert stack._is_enabled is {is_ours}"
    command = [sys.executable, "-c", script, str(tmp_path / "stack")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_that_ended_well_has_no_handler(tmp_path: Path) -> None:
    done = run_script("stack.close()" + CRASH, tmp_path / "stack", int(signal.SIGABRT))
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    assert not (tmp_path / "stack").exists()


MAIN = 'Thread 0x2 (most recent call first):\n  File "/job/train.py", line 8 in main\n'
OTHER = '{} 0x1 (most recent call first):\n  File "/job/read.py", line 5 in load\n\n'
FATAL = "Fatal Python error: Segmentation fault\n\n"


@pytest.mark.parametrize(
    ("text", "crashed", "function"),
    [
        (FATAL + OTHER.format("Current thread") + MAIN, True, "load"),
        (FATAL + OTHER.format("Thread") + MAIN, True, "main"),
        ("Timeout (0:00:02)!\n" + OTHER.format("Current thread") + MAIN, False, "main"),
        ("Timeout (0:00:02)!\n" + MAIN + FATAL + OTHER.format("Current thread"), True, "load"),
    ],
)
def test_the_thread_that_crashed_is_chosen(
    tmp_path: Path, text: str, crashed: bool, function: str
) -> None:
    status = Status(0, 1, "here", 7)
    (tmp_path / status.file_name.replace(SUFFIX, STACK_SUFFIX)).write_text(text)
    found = read_fault_stack(tmp_path, status)
    assert found is not None
    assert (found.is_crash, found.frames[0].function) == (crashed, function)


@pytest.mark.parametrize("text", ["", "Fatal Python error: Aborted\n", "\0" * 50])
def test_a_file_without_a_stack_says_nothing(tmp_path: Path, text: str) -> None:
    status = Status(0, 1, "here", 7)
    (tmp_path / status.file_name.replace(SUFFIX, STACK_SUFFIX)).write_text(text)
    assert read_fault_stack(tmp_path, status) is None


def test_a_line_number_that_no_file_has_is_no_frame(tmp_path: Path) -> None:
    """Python refuses to read a number of more than 4,300 digits."""
    status = Status(0, 1, "here", 1)
    path = tmp_path / status.file_name.replace(SUFFIX, STACK_SUFFIX)
    lines = [f'  File "/job/train.py", line {line} in step' for line in ("9" * 5_000, "12")]
    path.write_text("\n".join(["Fatal Python error: Aborted", "", "Current thread 0x1:", *lines]))
    report = read_fault_stack(tmp_path, status)
    assert report is not None
    assert [frame.line for frame in report.frames] == [12]


def report(function: str) -> str:
    head = "Timeout (0:00:15)!\nThread 0x01 (most recent call first):\n"
    return f'{head}  File "/home/me/train.py", line 9 in {function}\n'


def test_a_copied_stack_of_an_earlier_hold_is_not_read_again(tmp_path: Path) -> None:
    """A copy sets all times to that of the copy, and a hold that ends leaves its report."""
    status = Status(0, 1, "host", 7, written_ns=1, stack_bytes=len(report("earlier")))
    path = tmp_path / status.file_name.replace(SUFFIX, STACK_SUFFIX)
    path.write_text(report("earlier"))
    assert read_fault_stack(tmp_path, status) is None
    path.write_text(report("earlier") + report("now"))
    os.utime(path, ns=(0, 0))
    found = read_fault_stack(tmp_path, status)
    assert found is not None
    assert [frame.function for frame in found.frames] == ["now"]
    path.write_text("x" * MOST_STACK_BYTES + report("now"))
    late = dataclasses.replace(status, stack_bytes=MOST_STACK_BYTES)
    assert read_fault_stack(tmp_path, late) == found
    of_older_version = dataclasses.replace(status, stack_bytes=None)
    assert read_fault_stack(tmp_path, of_older_version) is None
