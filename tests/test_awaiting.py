"""The end of a job waits for a thread only while it gets on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from profkit.errors import ProfkitError
from profkit.run.awaiting import DiskWork, await_thread

IDLE_S = 0.3


def test_a_thread_that_computes_is_waited_for() -> None:
    def compute() -> None:
        end = time.monotonic() + 5 * IDLE_S
        while time.monotonic() < end:
            sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    assert await_thread(thread, IDLE_S, 30.0)


def test_a_thread_that_waits_for_ever_is_not() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=True)
    thread.start()
    before = time.monotonic()
    assert not await_thread(thread, IDLE_S, 30.0)
    assert time.monotonic() - before < 10 * IDLE_S
    release.set()
    thread.join()


def test_no_thread_is_waited_for_longer_than_the_longest_time() -> None:
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    assert not await_thread(thread, IDLE_S, 2 * IDLE_S)
    is_over.set()
    thread.join()


def test_a_thread_that_has_ended_needs_no_wait() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert await_thread(thread, IDLE_S, 30.0)


def test_work_returns_what_it_makes_and_raises_its_error() -> None:
    assert DiskWork(lambda: 5).finish(Path("run")) == 5
    with pytest.raises(ValueError, match="invalid literal"):
        DiskWork(lambda: int("five")).finish(Path("run"))


def test_work_that_no_disk_answers_is_left_alone_and_undone_when_it_does() -> None:
    answers, undone = threading.Event(), threading.Event()
    work = DiskWork(lambda: answers.wait(30), undo=lambda made: undone.set())
    with pytest.raises(ProfkitError, match=r"run: the disk does not answer.*--output"):
        work.finish(Path("run"), IDLE_S)
    answers.set()
    assert undone.wait(30)
