"""Reading the stack of a thread that runs never ends the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from types import CodeType

import pytest

from profkit.collectors.garbage import GarbageCollector
from profkit.collectors.stacks import stack_of, stacks


def own_frames(below: int) -> tuple[list[tuple[CodeType, int]], list[tuple[CodeType, int]]]:
    if below:
        return own_frames(below - 1)
    thread = threading.get_ident()
    return stack_of(thread), stacks()[thread]


def test_codes_and_lines_come_innermost_first() -> None:
    one, all_of_them = own_frames(3)
    names = [code.co_name for code, _ in one]
    first = names.index("own_frames")
    assert names[first : first + 5] == [
        *["own_frames"] * 4,
        "test_codes_and_lines_come_innermost_first",
    ]
    code, line = one[first]
    assert 0 < line - code.co_firstlineno < 6
    assert [each.co_name for each, _ in all_of_them].count("own_frames") == 4


@pytest.mark.parametrize("collects", [True, False])
def test_collections_stay_on_or_off(*, collects: bool) -> None:
    if not collects:
        gc.disable()
    try:
        own_frames(1)
        assert gc.isenabled() is collects
    finally:
        gc.enable()


JOB = """
import gc, sys, threading, time
sys.setswitchinterval(1e-6)
def note(phase, info):
    for _ in range(20):
        pass
gc.callbacks.append(note)  # Python code in each collection, as a job may have
gc.set_threshold(1)
from profkit.collectors import stacks
main = threading.get_ident()
def sample():
    while True:
        stacks.stack_of(main)
        stacks.stacks()
threading.Thread(target=sample, daemon=True).start()
def dive(depth):
    return dive(depth - 1) + 1 if depth else 0
until = time.monotonic() + 4
while time.monotonic() < until:
    for depth in (5, 300, 20, 700, 90):
        dive(depth)
"""


def test_a_thread_that_runs_is_not_harmed() -> None:
    """Python 3.11 ended such a process within seconds."""
    job = [sys.executable, "-X", "faulthandler", "-c", JOB]
    done = subprocess.run(job, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


READER = """
import gc, sys, threading, time
from profkit.collectors.garbage import COLLECTOR
sys.setswitchinterval(1e-6)
list(COLLECTOR.read())
gc.set_threshold(1)
main = threading.get_ident()
def sample():
    while True:
        frame = sys._current_frames().get(main)
        while frame is not None:
            frame.f_lineno
            frame = frame.f_back
threading.Thread(target=sample, daemon=True).start()
def dive(depth):
    return dive(depth - 1) + 1 if depth else 0
until = time.monotonic() + 4
while time.monotonic() < until:
    for depth in (5, 300, 20, 700, 90):
        dive(depth)
"""


def test_a_library_that_reads_stacks_is_not_harmed_by_timed_collections() -> None:
    """Python 3.11 ended such a process within seconds."""
    if GarbageCollector().why_not():
        pytest.skip("profkit was installed without a compiler")
    job = [sys.executable, "-X", "faulthandler", "-c", READER]
    done = subprocess.run(job, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
