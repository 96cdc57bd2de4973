"""Turns places in code into the frames of a status, which keep no object of the job."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from profkit.collectors._origins import Origins, cut
from profkit.hangs.activity import find_writer
from profkit.hangs.status import Frame
from profkit.vocab import OWN_CODE

MOST_INNER, MOST_OUTER = 40, 40
"""Frames that are kept of a deep stack: nested imports have hundreds below the job's own."""

MOST_THREADS = 8


class Code(Protocol):
    """What is needed of a code object; `co_qualname` is new in Python 3.11."""

    @property
    def co_filename(self) -> str: ...


def name_stack(places: Iterable[tuple[Code, int]], origins: Origins) -> tuple[Frame, ...]:
    """Return the frames of a stack, the innermost first, without those of profkit."""
    inner: list[Frame] = []
    outer: deque[Frame] = deque(maxlen=MOST_OUTER)
    for code, line in places:
        origin = origins.of(code.co_filename)
        if origin:
            function = cut(getattr(code, "co_qualname", "") or getattr(code, "co_name", ""))
            kept = inner if len(inner) < MOST_INNER else outer
            kept.append(Frame(origins.shown(code.co_filename), function, line, origin))
    return (*inner, *outer)


def choose_others(stacks: Iterable[tuple[Frame, ...]]) -> tuple[tuple[Frame, ...], ...]:
    """Return the stacks of other threads that matter.

    These are in the job's code, or write a checkpoint for it, as `async_save` of torch does.
    """
    chosen: list[tuple[Frame, ...]] = []
    for stack in stacks:
        matters = any(frame.origin == OWN_CODE for frame in stack) or find_writer(stack)
        if matters and len(chosen) < MOST_THREADS:
            chosen.append(stack)
    return tuple(chosen)
