"""Read the stacks of this process's threads, and look at its child processes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from multiprocessing import process as multiprocessing_process
from types import CodeType

from profkit.collectors._origins import Origins, cut
from profkit.collectors.stacks import stacks
from profkit.hangs.activity import find_writer
from profkit.hangs.processes import find_exit_code, look_at
from profkit.hangs.status import Frame, Worker
from profkit.vocab import OWN_CODE

MOST_INNER, MOST_OUTER = 40, 40
"""Frames that are kept of a deep stack: nested imports have hundreds below the job's own."""

MOST_THREADS = 8
MOST_WORKERS = 64


class Stacks:
    """Turns frames into names and lines at once, and keeps no object of the job."""

    def __init__(self) -> None:
        self._origins = Origins()

    def read(self, thread: int) -> tuple[tuple[Frame, ...], tuple[tuple[Frame, ...], ...]]:
        """Return the stack of this thread, and those of others that matter.

        These are in the job's code, or write a checkpoint for it, as `async_save` of torch does.
        """
        own: tuple[Frame, ...] = ()
        others: list[tuple[Frame, ...]] = []
        for ident, places in stacks().items():
            if ident == thread:
                own = self._name(places)
            elif ident != threading.get_ident() and len(others) < MOST_THREADS:
                stack = self._name(places)
                if any(frame.origin == OWN_CODE for frame in stack) or find_writer(stack):
                    others.append(stack)
        return own, tuple(others)

    def of_error(self, error: BaseException) -> list[Frame]:
        """Return the places that an exception has passed, the innermost first."""
        outer: list[Frame] = []
        inner: deque[Frame] = deque(maxlen=MOST_INNER)
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            origin = self._origins.of(code.co_filename)
            if origin:
                path = self._origins.shown(code.co_filename)
                kept = outer if len(outer) < MOST_OUTER else inner
                kept.append(Frame(path, cut(code.co_name), trace.tb_lineno, origin))
            trace = trace.tb_next
        return [*outer, *inner][::-1]

    def shown(self, place: str) -> str:
        """Return a path or an address as it is stored."""
        return self._origins.shown(place) if place.startswith("/") else place

    def _name(self, places: Iterable[tuple[CodeType, int]]) -> tuple[Frame, ...]:
        inner: list[Frame] = []
        outer: deque[Frame] = deque(maxlen=MOST_OUTER)
        for code, line in places:
            origin = self._origins.of(code.co_filename)
            if origin:  # else it is a frame of profkit
                function = cut(getattr(code, "co_qualname", code.co_name))
                path = self._origins.shown(code.co_filename)
                kept = inner if len(inner) < MOST_INNER else outer
                kept.append(Frame(path, function, line, origin))
        return (*inner, *outer)


def native_id(ident: int) -> int:
    """Return the kernel's number of a thread; 0 if Python does not know it.

    After a fork, Python 3.11 keeps the number of the parent's thread for the main one.
    """
    if ident == threading.main_thread().ident:
        return os.getpid()
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.native_id or 0
    return 0


def look_at_workers() -> tuple[Worker, ...]:
    """Return the processes that multiprocessing has started here, without waiting for any."""
    children = getattr(multiprocessing_process, "_children", ())
    workers = []
    for child in list(children)[:MOST_WORKERS]:
        process = getattr(child, "_popen", None)
        pid = process and child.pid
        if pid:
            look, code = look_at(pid), find_exit_code(pid)
            if code is None:  # the job has asked for its end already
                code = getattr(process, "returncode", None)
            name = cut(str(child.name))
            workers.append(Worker(name, pid, look.state, look.reads, exit_code=code))
    return tuple(sorted(workers, key=lambda worker: worker.pid))
