"""The handler of crashes notes a signal, waits a moment, and leaves the rest as it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.eye.standing import CRASH as NOTE

BEGIN = """
import os, sys
from pathlib import Path
from profkit.run.lookout.crash import catch_crashes, release_crashes

is_caught = catch_crashes(Path(sys.argv[1]))
"""
CRASH = """
def crash():
    os.kill(os.getpid(), int(sys.argv[2]))
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
def test_a_crash_that_nobody_reads_ends_as_before(tmp_path: Path, number: signal.Signals) -> None:
    done = run_script(CRASH, tmp_path / "stack", int(number))
    assert (done.returncode, done.stderr) == (-number, "")
    signal_number, thread = NOTE.unpack((tmp_path / "stack").read_bytes())
    assert signal_number == number
    assert thread


def test_a_crash_of_a_child_is_not_one_of_the_rank(tmp_path: Path) -> None:
    done = run_script(CHILD, tmp_path / "stack")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "stack").exists()


def test_the_handler_of_the_job_wins(tmp_path: Path) -> None:
    done = run_script(OWN + "release_crashes()" + CRASH, tmp_path / "stack", int(signal.SIGABRT))
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error" in done.stderr
    assert not (tmp_path / "stack").exists()


SWITCHED = """
import faulthandler
faulthandler.enable()
faulthandler.disable()
catch_crashes(Path(sys.argv[1]))
"""
RECOVERING = """
import signal
signal.signal(signal.SIGSEGV, lambda number, frame: None)  # stands for a runtime in native code
"""


def test_the_handler_of_the_job_is_not_ours(tmp_path: Path) -> None:
    """The job switches Python's handler off, and ours still writes into our file."""
    done = run_script(SWITCHED + CRASH, tmp_path / "stack", int(signal.SIGABRT))
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    assert (tmp_path / "stack").exists()


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


@pytest.mark.parametrize("recorded", ["", BEGIN + "atexit.register(release_crashes)"])
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
    script = before + BEGIN + f"assert is_caught is {is_ours}"
    command = [sys.executable, "-c", script, str(tmp_path / "stack")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_that_ended_well_has_no_handler(tmp_path: Path) -> None:
    done = run_script("release_crashes()" + CRASH, tmp_path / "stack", int(signal.SIGABRT))
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    assert not (tmp_path / "stack").exists()
