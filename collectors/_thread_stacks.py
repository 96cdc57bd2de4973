"""Reads the stacks of other threads without harm to them.

In Python 3.11, asking for the frames of a running thread may end the process with a SIGSEGV, if a
garbage collection begins meanwhile; `_frames.c` says how. Without that module, collections are off
while a stack is read.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

MOST_DEPTH = 128
"""Outer frames of a deeper stack are dropped, which bounds the time of a sample."""

_AT_RISK = (3, 11) <= sys.version_info < (3, 12)
"""Since Python 3.12, no collection begins where an object is made."""

compiled: Any = None
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.collectors import _frames

    compiled = _frames


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
    if not (_AT_RISK and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
