"""Reads the stacks of other threads without harm to them.

In Python 3.11, asking for the frames of a running thread may end the process with a SIGSEGV, if a
garbage collection begins meanwhile; `_frames.c` says how. Without that module, collections are off
while a stack is read.

`look` reads the stack at a given time, also of a thread that holds the interpreter (`_glance.c`).
Without that module it waits until the thread releases it, and says how late that was.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from profkit.clock import Clock, now_ns

MOST_DEPTH = 128
"""Outer frames of a deeper stack are dropped, which bounds the time of a sample."""

AT_RISK = (3, 11) <= sys.version_info < (3, 12)
"""True in Python 3.11. Since 3.12, no collection begins where an object is made."""

compiled: Any = None
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.collectors import _frames

    compiled = _frames


glance: Any = None
with contextlib.suppress(ImportError):  # or this Python has other frames
    from profkit.collectors import _glance

    glance = _glance

LAST_S = 0.007
"""A caller of `look` may do so this much earlier: then it waits for the exact time itself.

Python that wakes up to call it may have to wait 5 ms for the interpreter.
"""

LONGEST_S = 0.1
"""It may do so even this much earlier if `can_glance`.

A thread that has to wake up first may wait seconds for the interpreter; `_glance.c` says why.
"""


class Look(NamedTuple):
    """A stack, innermost frame first, and when it was read."""

    places: list[tuple[CodeType, int]]
    time_ns: int
    late_ns: int
    """How late it was read, if the thread had to release the interpreter before."""
    longer_ns: int
    """The sample represents so much more time, because the sampler had to wait."""


@functools.cache
def can_glance() -> bool:
    """Return true if stacks can be read while their threads run, and are read as Python does."""
    if glance is None:
        return False
    own = threading.get_ident()
    seen, known = glance.look(own, 0, None), stack_of(own)
    expected = known[1:]  # without the frame of `stack_of`
    return seen is not None and seen[0][: len(expected)] == expected


def look(thread: int, due_ns: int, clock: Clock = now_ns, below: CodeType | None = None) -> Look:
    """Return a thread's stack at this time, or once it can be read.

    Frames outside the one of the code `below` are dropped.
    """
    if clock is now_ns and can_glance():
        found = glance.look(thread, due_ns, below)
        if found is not None:
            places, time_ns, waited_ns = found
            late_ns = max(0, time_ns - due_ns) if due_ns else 0
            return Look(places, time_ns, 0, late_ns + waited_ns)
    wait_until(due_ns, clock)
    now = clock()
    return Look(stack_of(thread, below), now, max(0, now - due_ns) if due_ns else 0, 0)


def ahead_s() -> float:
    """Return how much earlier `look` may be called at most."""
    return LONGEST_S if can_glance() else LAST_S


def wait_until(due_ns: int, clock: Clock = now_ns) -> None:
    """Wait for this time, which is at most `LONGEST_S` away."""
    if clock is now_ns:
        time.sleep(min(max(0.0, (due_ns - clock()) / 1e9), LONGEST_S))


def can_look() -> bool:
    """Return true if this Python shows the stacks of its threads."""
    return hasattr(sys, "_current_frames")


def stack_of(thread: int, below: CodeType | None = None) -> list[tuple[CodeType, int]]:
    """Return codes and lines of a thread's frames, innermost first; nothing if it has ended.

    Frames outside the one of the code `below` are dropped.
    """
    if compiled is not None:
        found: list[tuple[CodeType, int]] = compiled.stack_of(thread, MOST_DEPTH, below)
        return found
    places: list[tuple[CodeType, int]] = []
    with _no_collection():
        for frame in _outwards(sys._current_frames().get(thread)):  # noqa: SLF001
            if frame.f_code is below or len(places) >= MOST_DEPTH:
                break
            places.append((frame.f_code, frame.f_lineno or 0))
    return places


def stacks() -> dict[int, list[tuple[CodeType, int]]]:
    """Return codes and lines of all threads' frames, innermost first."""
    if compiled is not None:
        found: dict[int, list[tuple[CodeType, int]]] = compiled.stacks()
        return found
    seen = {}
    with _no_collection():
        for thread, innermost in sys._current_frames().items():  # noqa: SLF001
            frames = _outwards(innermost)
            seen[thread] = [(frame.f_code, frame.f_lineno or 0) for frame in frames]
    return seen


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
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
