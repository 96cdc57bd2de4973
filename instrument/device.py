"""Device times at phase boundaries, by events that are read later without waiting.

An event that is recorded on the stream is reached by the device when all work before it is done.
The training thread only records. The writer's thread asks if an event has been reached, and
never waits for one. Without a device the columns of device times stay null.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from profkit.clock import ANCHOR_INTERVAL_NS, Clock, now_ns
from profkit.instrument.rows import Append, CollectiveRow, Event, Row, SpanRow

LARGEST_POOL = 4_096
"""Maximum number of pending events, so that a device that lags behind costs no memory."""

_SPAN_TIMES = tuple(map(SpanRow._fields.index, ("device_start_ns", "device_end_ns")))
"""Positions of the device's times in a row of `spans`, next to the host's."""

_COLLECTIVE_TIMES = tuple(map(CollectiveRow._fields.index, ("start_ns", "end_ns")))
"""Positions of the device's times in a row of `collectives`, in place of the host's."""


class Device(Protocol):
    """Makes events, and ties its clock to the host's."""

    def make_event(self) -> Event: ...

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        """Return an event just reached on an idle stream, the host's time and its uncertainty.

        Returns `None` if that took too long.
        """


@dataclass(frozen=True)
class DeviceAnchor:
    """An event and the host time at which the device reached it."""

    event: Event
    host_ns: int
    uncertainty_ns: int

    def host_ns_of(self, event: Event) -> int:
        """Return the host time at which the device reached another event."""
        return self.host_ns + round(event.ns_since(self.event))


_Held = tuple[Row, Event | None, Event | None, tuple[int, ...], Append]
"""A row, its events, the positions that their times get in it, and the receiver of the row."""


class DeviceTimer:
    """Marks phase boundaries on the device, and adds the device's times to rows.

    `mark`, `drop` and `hold` are called by the training thread, `collect` by the writer's thread.
    """

    def __init__(
        self,
        device: Device,
        append: Callable[[Row], None],
        *,
        clock: Clock = now_ns,
        largest_pool: int = LARGEST_POOL,
    ) -> None:
        self._device = device
        self._append = append
        self._clock = clock
        self._largest_pool = largest_pool
        self._free: list[Event] = []
        self.pool_size = 0
        """Number of events that were made."""
        self._held: deque[_Held] = deque()
        self._anchor: DeviceAnchor | None = None
        self._next_anchor_ns = 0
        self.unmarked = 0
        """Number of boundaries without an event because the pool was exhausted."""

    def mark(self) -> Event | None:
        """Record an event on the current stream; return `None` if the pool is exhausted."""
        if self._free:
            event = self._free.pop()
        elif self.pool_size < self._largest_pool:
            self.pool_size += 1
            event = self._device.make_event()
        else:
            self.unmarked += 1
            return None
        event.record()
        return event

    def drop(self, event: Event) -> None:
        """Return an event that no row needs to the pool."""
        self._free.append(event)

    def hold(self, row: Row, start: Event | None, end: Event | None) -> None:
        """Hold a row of `spans` until its events are reached."""
        self._held.append((row, start, end, _SPAN_TIMES, self._append))

    def hold_collective(
        self, row: Row, start: Event | None, end: Event | None, append: Append
    ) -> None:
        """Hold a row of `collectives` until its events are reached, then hand it to `append`."""
        self._held.append((row, start, end, _COLLECTIVE_TIMES, append))

    def collect(self, final: bool = False) -> None:
        """Append the rows whose events have been reached, in order.

        With `final`, rows that still wait are appended without device times.
        """
        self._renew_anchor()
        while self._held:
            row, start, end, positions, append = self._held[0]
            reached = (start is None or start.done()) and (end is None or end.done())
            if not reached and not final:
                return
            self._held.popleft()
            if not reached:
                append(row)
                continue
            values = list(row)
            for position, event in zip(positions, (start, end), strict=True):
                if event is not None and self._anchor is not None:
                    values[position] = self._anchor.host_ns_of(event)
            append(tuple(values))
            self._free.extend(event for event in (start, end) if event is not None)

    def _renew_anchor(self) -> None:
        now = self._clock()
        if now < self._next_anchor_ns:
            return
        reached = self._device.reach_idle_event(self._clock)
        if reached is not None:
            self._anchor = DeviceAnchor(*reached)
            self._next_anchor_ns = now + ANCHOR_INTERVAL_NS
