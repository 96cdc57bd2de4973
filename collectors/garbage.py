"""Pauses of Python's garbage collector: the whole process waits while it looks for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.collectors.base import Reading


class GarbageCollector:
    """Times each collection through `gc.callbacks`, from the first reading until `close`."""

    name = "garbage"
    interval_s = 1.0

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._began_ns = self._pause_ns = self._longest_ns = self._count = 0

    def why_not(self) -> str:
        return ""

    def read(self) -> Iterator[Reading]:
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)
        yield Reading("pause_seconds", self._pause_ns / 1e9)
        yield Reading("collections_count", self._count)
        longest, self._longest_ns = self._longest_ns, 0
        yield Reading("longest_pause_ns", longest)

    def close(self) -> None:
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, moment: str, about: Mapping[str, Any]) -> None:
        """Time a collection; Python calls this at its start and end, on the thread that waits."""
        if moment == "start":
            self._began_ns = self._clock()
        elif self._began_ns:
            pause = self._clock() - self._began_ns
            self._pause_ns += pause
            self._longest_ns = max(self._longest_ns, pause)
            self._count += 1


COLLECTOR = GarbageCollector()
