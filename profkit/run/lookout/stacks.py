"""Read the stacks of this process's threads, and look at its child processes."""

from __future__ import annotations

import os
import threading
from collections import deque
from multiprocessing import process as multiprocessing_process

from profkit.collectors._origins import Origins, cut
from profkit.collectors.stacks import stacks
from profkit.eye.naming import MOST_INNER, MOST_OUTER, choose_others, name_stack
from profkit.hangs.processes import find_exit_code, look_at
from profkit.hangs.status import Frame, Worker

MOST_WORKERS = 64


class Stacks:
    """Turns frames into names and lines at once, and keeps no object of the job."""

    def __init__(self) -> None:
        self._origins = Origins()

    def read(self, thread: int) -> tuple[tuple[Frame, ...], tuple[tuple[Frame, ...], ...]]:
        """Return the stack of this thread, and those of others that matter."""
        found = stacks()
        own = name_stack(found.pop(thread, ()), self._origins)
        found.pop(threading.get_ident(), None)
        others = [name_stack(places, self._origins) for places in found.values()]
        return own, choose_others(others)

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
