"""Measures what it costs the training thread to mark a boundary on the device."""

from __future__ import annotations

from collections.abc import Callable

from profkit.clock import now_ns
from profkit.instrument.device import DeviceTimer
from profkit.instrument.rows import Event

TIMED = 100
"""Number of marks that are timed."""


class MarkPrice:
    """Marks boundaries, and times the first marks that make no new event.

    They are timed where they happen, because in a loop of marks alone, code and driver stay in the
    processor's caches, and a mark takes less time. Then `found` is called with their median.
    """

    def __init__(
        self, mark: Callable[[], Event | None], timer: DeviceTimer, found: Callable[[float], None]
    ) -> None:
        self._mark = mark
        self._timer = timer
        self._found = found
        self._times: list[int] = []

    def __call__(self) -> Event | None:
        made, start = self._timer.pool_size, now_ns()
        event = self._mark()
        took = now_ns() - start
        if event is not None and self._timer.pool_size == made:
            self._times.append(took)
            if len(self._times) >= TIMED:  # two threads may mark
                self._found(float(sorted(self._times)[TIMED // 2]))
        return event
