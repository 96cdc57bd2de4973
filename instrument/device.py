"""Device time at phase borders: pooled events, recorded by the job, read later without waiting.

An event that is recorded on the stream is reached by the device when all work before it is done.
The training thread only records; the writer's thread asks whether an event has been reached, and
never waits for one. Without a device there is none of this, and the columns stay null.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from profkit.clock import Clock, now_ns

Row = tuple[Any, ...]

LARGEST_POOL = 4_096
"""Events that may be under way at once; a device that is further behind costs device times, not memory."""

ANCHOR_INTERVAL_NS = 10_000_000_000
_START, _END = 7, 8
"""Where the device's times stand in rows without their rank: in `spans` beside the host's, in `collectives` in their place."""


class Event(Protocol):
    """One event of a device; what `torch.cuda.Event` is, in the terms of this module."""

    def record(self) -> None:
        """Put it on the current stream."""

    def done(self) -> bool:
        """Whether the device has reached it. Must not wait."""

    def ns_since(self, earlier: Any) -> float:
        """Nanoseconds of device time from another event that was reached to this one."""


class Device(Protocol):
    """Makes events, and ties its clock to the host's."""

    def make_event(self) -> Event: ...

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        """An event reached just now on an idle stream: it, the host's time, and the uncertainty; `None` if it took too long."""


@dataclass(frozen=True)
class DeviceAnchor:
    """An event and the host time at which the device reached it."""

    event: Event
    host_ns: int
    uncertainty_ns: int


class DeviceTimer:
    """Marks phase borders on the device, and completes the rows of spans when the device has passed them."""

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
        self._made = 0
        self._held: deque[tuple[Row, Event | None, Event | None, Callable[[Row], None]]] = deque()
        self._anchor: DeviceAnchor | None = None
        self._next_anchor_ns = 0
        self.unmarked = 0

    @property
    def pool_size(self) -> int:
        return self._made

    def mark(self) -> Event | None:
        """Record an event on the current stream; `None` where the pool is exhausted. Called by the training thread."""
        if self._free:
            event = self._free.pop()
        elif self._made < self._largest_pool:
            self._made += 1
            event = self._device.make_event()
        else:
            self.unmarked += 1
            return None
        event.record()
        return event

    def drop(self, event: Event) -> None:
        """An event that was recorded for nothing. Called by the training thread."""
        self._free.append(event)

    def hold(
        self,
        row: Row,
        start: Event | None,
        end: Event | None,
        append: Callable[[Row], None] | None = None,
    ) -> None:
        """Keep a row until its events are reached, then hand it to `append`. Called by the training thread."""
        self._held.append((row, start, end, append or self._append))

    def collect(self, final: bool = False) -> None:
        """Append the rows whose events have been reached, in order. Called by the writer's thread.

        With `final`, rows that still wait are appended without device times.
        """
        self._renew_anchor()
        while self._held:
            row, start, end, append = self._held[0]
            reached = all(event is None or event.done() for event in (start, end))
            if not reached and not final:
                return
            self._held.popleft()
            append(self._complete(row, start, end) if reached else row)
            self._free.extend(event for event in (start, end) if event is not None and reached)

    def _complete(self, row: Row, start: Event | None, end: Event | None) -> Row:
        return (
            *row[:_START],
            self._host_ns(start, row[_START]),
            self._host_ns(end, row[_END]),
            *row[_END + 1 :],
        )

    def _host_ns(self, event: Event | None, otherwise: int | None) -> int | None:
        if event is None or self._anchor is None:
            return otherwise
        return self._anchor.host_ns + round(event.ns_since(self._anchor.event))

    def _renew_anchor(self) -> None:
        now = self._clock()
        if now < self._next_anchor_ns:
            return
        reached = self._device.reach_idle_event(self._clock)
        if reached is not None:
            self._anchor = DeviceAnchor(*reached)
            self._next_anchor_ns = now + ANCHOR_INTERVAL_NS
