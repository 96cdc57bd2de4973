"""A thread's stack is read while it holds the interpreter, and never harms it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from profkit.clock import now_ns
from profkit.collectors import _thread_stacks
from profkit.collectors._thread_stacks import can_glance, look, stack_of

needs_glance = pytest.mark.skipif(
    not can_glance(), reason="the frames of this version of Python are not known"
)
LOOKS = 150


class Worker(threading.Thread):
    """A loop of Python that holds the interpreter for 2 ms, and then releases it elsewhere."""

    is_new = False
    """True if the code that holds it is compiled each time, and gone afterwards."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            if self.is_new:
                exec("for _ in range(20_000): pass")
            else:
                hold()
            let_go()
            time.sleep(0.0005)  # or the main thread would wait for seconds


def hold() -> None:
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass


def let_go() -> None:
    """Let go of the interpreter for less time than another thread needs to take it."""
    hashlib.sha256(bytes(4_096))


@contextmanager
def working(*, is_new: bool = False) -> Iterator[int]:
    worker = Worker()
    worker.is_new = is_new
    worker.start()
    time.sleep(0.05)
    assert worker.ident is not None
    yield worker.ident
    worker.ended = True
    worker.join()


def _innermost(places: list[tuple[Any, int]]) -> str:
    return str(places[0][0].co_name)


@needs_glance
@pytest.mark.measured
def test_a_line_that_holds_the_interpreter_is_seen() -> None:
    """It lets go of it for so short that a thread which waits is late by seconds."""
    seen = Counter[str]()
    times_ms = []
    working_thread, has_ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        for _ in range(LOOKS):
            found = look(working_thread, now_ns() + 7_300_000)
            seen[_innermost(found.places)] += 1
            times_ms.append(found.longer_ns / 1e6)
        has_ended.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    while not has_ended.is_set():
        hold()
        let_go()
    watcher.join()
    assert seen["hold"] > 0.5 * LOOKS
    assert sorted(times_ms)[LOOKS * 8 // 10] < 5  # on a busy machine, others come late


@needs_glance
def test_code_that_is_gone_leaves_its_caller() -> None:
    with working(is_new=True) as thread:
        for _ in range(LOOKS):
            found = look(thread, now_ns() + 2_300_000)
            assert "run" in [code.co_name for code, _ in found.places]
            assert found.late_ns == 0


@needs_glance
def test_the_time_is_that_at_which_it_was_due() -> None:
    with working() as thread:
        late = []
        for _ in range(LOOKS):
            due_ns = now_ns() + 3_000_000
            found = look(thread, due_ns)
            assert found.time_ns >= due_ns
            assert found.longer_ns >= found.time_ns - due_ns
            late.append(found.time_ns - due_ns)
    assert sorted(late)[LOOKS // 10] < 2_000_000  # on a busy machine, others come late


Stop = Callable[[], Any]


class Made:
    """It stops while it is made, or where an attribute is asked for."""

    def __init__(self, stop: Stop, *, now: bool = True) -> None:
        self._stop = stop
        if now:
            stop()

    @property
    def value(self) -> Any:
        return self._stop()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._stop()


def _in_a_generator(stop: Stop) -> None:
    def inner() -> Iterator[int]:
        yield 1
        stop()
        yield 2

    def outer() -> Iterator[int]:
        yield from inner()

    list(outer())


def _in_a_coroutine(stop: Stop) -> None:
    async def inner() -> None:
        stop()

    async def outer() -> None:
        await inner()

    with suppress(StopIteration):
        outer().send(None)


def _in_a_context(stop: Stop) -> None:
    with Made(stop, now=False):
        pass


def _deep(stop: Stop, depth: int = 60) -> Any:
    if depth:
        return _deep(stop, depth - 1)
    return stop()


SHAPES: dict[str, Callable[[Stop], object]] = {
    "a call from C": lambda stop: sorted([1], key=lambda _: stop()),
    "a comprehension": lambda stop: [stop() for _ in range(1)],
    "a generator": _in_a_generator,
    "a coroutine": _in_a_coroutine,
    "a class": Made,
    "many objects of a class": lambda stop: [Made(stop, now=at > 20) for at in range(22)],
    "a property": lambda stop: Made(stop, now=False).value,
    "a context": _in_a_context,
    "code that is run": lambda stop: exec("stop()", {"stop": stop}),
    "many calls": _deep,
}


@needs_glance
@pytest.mark.parametrize("shape", SHAPES)
def test_the_stack_is_the_one_that_python_shows(shape: str) -> None:
    is_there, may_go = threading.Event(), threading.Lock()

    def stop() -> None:
        is_there.set()
        with may_go:
            pass

    with may_go:
        thread = threading.Thread(target=SHAPES[shape], args=(stop,))
        thread.start()
        assert is_there.wait(60)
        assert thread.ident is not None
        time.sleep(0.05)  # until it waits for the lock
        found = _thread_stacks.glance.look(thread.ident, 0, None)
        expected = stack_of(thread.ident)
    thread.join()
    assert "stop" in [code.co_name for code, _ in expected]
    assert found[0] == expected


@needs_glance
def test_a_thread_that_ended_has_no_stack() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert thread.ident is not None
    assert _thread_stacks.glance.look(thread.ident, 0, None) is None
    assert look(thread.ident, 0).places == []


@needs_glance
def test_frames_outside_a_code_are_dropped() -> None:
    def inner() -> Any:
        return _thread_stacks.glance.look(threading.get_ident(), 0, here)[0]

    here = sys._getframe().f_code
    assert [code.co_name for code, _ in inner()] == ["inner"]


def test_without_it_a_stack_is_read_when_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread_stacks, "can_glance", lambda: False)
    due_ns = now_ns() - 5_000_000
    found = look(threading.get_ident(), due_ns)
    assert found.late_ns >= 5_000_000
    assert found.longer_ns == 0
    assert [code.co_name for code, _ in found.places][1] == "look"


HOSTILE = """
import gc, sys, threading, time
from profkit.collectors import _glance

def recurse(depth):
    return recurse(depth - 1) if depth else sum(i for i in range(20))

def churn():
    number = 0
    while not ended:
        number += 1
        space = {}
        exec(f"def made(x):\\n    y = [x] * 10\\n    return (z + {number} for z in y)", space)
        sum(space["made"](number))
        recurse(number % 90)
        if not number % 50:
            gc.collect()

ended = False
threads = [threading.Thread(target=churn) for _ in range(2)]
for thread in threads:
    thread.start()
kinds = set()
until = time.monotonic() + 4
looks = 0
while time.monotonic() < until:
    for thread in threads:
        found = _glance.look(thread.ident, time.monotonic_ns() + 200_000, None)
        looks += 1
        for code, line in found[0] if found else ():
            kinds.add(type(code).__name__)
            repr(code), line + 0
ended = True
for thread in threads:
    thread.join()
print(looks > 50, sorted(kinds))
"""


@needs_glance
def test_code_that_comes_and_goes_does_no_harm() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", HOSTILE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "True ['code']\n"), done.stderr


ENDING = """
import threading, time
from profkit.collectors import _glance

def watch(pause_ns):
    while True:
        _glance.look(job, time.monotonic_ns() + pause_ns, None)

job = threading.get_ident()
for number in range(6):
    threading.Thread(target=watch, args=(20_000 * number + 10_000,), daemon=True).start()
kept = [object() for _ in range(200_000)]
time.sleep(0.05)
"""


@needs_glance
def test_threads_that_look_while_python_ends_do_no_harm() -> None:
    for _ in range(10):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", ENDING],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
