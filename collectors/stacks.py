"""Lines of Python that the training thread runs, twice per second, if the eye reads none."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from profkit.clock import Clock, now_ns
from profkit.collectors._frame_table import NOTHING, FrameTable
from profkit.collectors.base import Inside, Reading

INTERVAL_S = 0.5
"""Mean time between two samples: a tenth of the eye's rate, because each takes the interpreter."""

READS_PER_COUNT = 200
"""The number of stored samples is a reading once in so many samples."""

AT_RISK = (3, 11) <= sys.version_info < (3, 12)
"""True in Python 3.11. There, asking for the frames of a running thread may end the process with a
SIGSEGV, if a garbage collection begins meanwhile. Since 3.12, none begins where an object is made.
"""


class StackSampler:
    """Looks at the training thread from its own thread, if the eye does not (`profkit.eye`).

    It can only look once the job releases the interpreter, which busy Python does when it is asked
    after 5 ms. `late_ns` lets a reader allow for that. While recording is off (control steps) it
    does not look, so that the difference to those steps holds its cost.
    """

    name = "stacks"
    on_request = True
    interval_s = INTERVAL_S

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._random = random.Random()  # the job's own generator must not move
        self._inside: Inside | None = None
        self._frames = FrameTable(lambda row: None)
        self._due_ns = self._reads = self._stored = 0

    def wait_s(self) -> float:
        """Return a random time around the mean: in a loop of that period, one line would be all."""
        wait_s = INTERVAL_S * self._random.uniform(0.5, 1.5)
        self._due_ns = self._clock() + int(wait_s * 1e9)
        return wait_s

    def why_not(self) -> str:
        if hasattr(sys, "_current_frames"):
            return ""
        return "this Python does not show the stacks of its threads; it needs CPython"

    def watch(self, inside: Inside) -> None:
        """Sample this thread from now on, into these tables, while nobody else does."""
        self._frames = FrameTable(inside.frames)
        self._inside = inside

    def close(self) -> None:
        self._inside = None

    def read(self) -> Iterator[Reading]:
        """Store one sample as a row of `stacks`; now and then, count what was stored."""
        if self._reads % READS_PER_COUNT == 0:
            yield Reading("stored_count", self._stored)
        self._reads += 1
        inside = self._inside
        if inside is None or not inside.is_recording() or not inside.needs_lines():
            return
        places = stack_of(inside.thread)
        now = self._clock()
        stack = self._frames.store(places)
        if stack != NOTHING:
            late_ns = max(0, now - self._due_ns)
            self._stored += 1
            inside.stacks((now, late_ns, int(INTERVAL_S * 1e9), inside.thread_name, stack))


def stack_of(thread: int) -> list[tuple[CodeType, int]]:
    """Return codes and lines of a thread's frames, innermost first; nothing if it has ended."""
    with _no_collection():
        return list(_outwards(sys._current_frames().get(thread)))  # noqa: SLF001


def stacks() -> dict[int, list[tuple[CodeType, int]]]:
    """Return codes and lines of all threads' frames, innermost first."""
    with _no_collection():
        frames = sys._current_frames()  # noqa: SLF001  # it has no public name
        return {thread: list(_outwards(frame)) for thread, frame in frames.items()}


def _outwards(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno or 0
        frame = frame.f_back


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    if not (AT_RISK and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


COLLECTOR = StackSampler()
