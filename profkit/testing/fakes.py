"""Stand-ins for what a test cannot have: a clock that stands still, a device that works off a queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profkit.clock import Clock
from profkit.instrument.rows import Event


@dataclass
class FakeClock:
    """A clock that stands still until `advance` is called."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


@dataclass
class FakeDevice:
    """A device that works off a queue: an event is reached when all work put on it before is done.

    Its clock runs `offset_ns` apart from the host's; change that to have it drift. `launch` puts work on it.
    """

    clock: FakeClock
    offset_ns: int = 5_000_000_000
    idle_answers: bool = True
    busy_until_ns: int = 0
    made: list[FakeEvent] = field(default_factory=list)

    def launch(self, duration_ns: int) -> None:
        self.busy_until_ns = max(self.busy_until_ns, self.clock()) + duration_ns

    def make_event(self) -> Event:
        self.made.append(FakeEvent(self))
        return self.made[-1]

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        """Reached at once, as on an idle stream; with `idle_answers` off, not in time."""
        event = FakeEvent(self, clock(), clock() + self.offset_ns)
        return (event, event.reached_ns, 0) if self.idle_answers else None


@dataclass
class FakeEvent:
    """An event of a `FakeDevice`, with the time it is reached at on both clocks."""

    device: FakeDevice
    reached_ns: int = -1
    device_ns: int = 0

    def record(self) -> None:
        self.reached_ns = max(self.device.busy_until_ns, self.device.clock())
        self.device_ns = self.reached_ns + self.device.offset_ns

    def done(self) -> bool:
        return self.device.clock() >= self.reached_ns

    def ns_since(self, earlier: Any) -> float:
        return float(self.device_ns - earlier.device_ns)
