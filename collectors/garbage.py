"""Pauses of Python's garbage collector: the whole process waits while it looks for cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.collectors.base import Reading
from profkit.collectors.stacks import AT_RISK

compiled: Any = None
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.collectors import _garbage

    compiled = _garbage


class Pauses:
    """Times each collection in Python, if profkit was installed without a compiler."""

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._began_ns = self._pause_ns = self._longest_ns = self._count = 0

    def note_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        """Time a collection; Python calls this at its start and end, on the thread that waits."""
        if phase == "start":
            self._began_ns = self._clock()
        elif self._began_ns:
            pause = self._clock() - self._began_ns
            self._pause_ns += pause
            self._longest_ns = max(self._longest_ns, pause)
            self._count += 1

    def pauses(self) -> tuple[int, int, int]:
        """Return the sum, the number, and the longest one since the last call."""
        longest, self._longest_ns = self._longest_ns, 0
        return self._pause_ns, self._count, longest


class GarbageCollector:
    """Times collections through `gc.callbacks`, from the first reading until `close`.

    In Python 3.11, a collection may begin while another library asks for a thread's frames. If its
    callbacks then give the interpreter away, the process ends with a SIGSEGV. Those in C do not.
    """

    name = "garbage"
    interval_s = 1.0

    def __init__(self, timer: Any = compiled) -> None:
        self._is_safe = timer is not None or not AT_RISK
        self._timer = timer if timer is not None else Pauses()

    def why_not(self) -> str:
        if self._is_safe:
            return ""
        return "Python 3.11 may crash if Python code times collections; install with a C compiler"

    def read(self) -> Iterator[Reading]:
        if self._timer.note_collection not in gc.callbacks:
            gc.callbacks.append(self._timer.note_collection)
        pause_ns, count, longest_ns = self._timer.pauses()
        yield Reading("pause_seconds", pause_ns / 1e9)
        yield Reading("collections_count", count)
        yield Reading("longest_pause_ns", longest_ns)

    def close(self) -> None:
        if self._timer.note_collection in gc.callbacks:
            gc.callbacks.remove(self._timer.note_collection)


COLLECTOR = GarbageCollector()
