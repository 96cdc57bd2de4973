"""A clock that advances only on request, a device with a queue, the steps of a loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profkit.clock import Clock
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Event
from profkit.instrument.tracking.tracker import Tracker


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
    """A device that works off a queue. It reaches an event when all earlier work is done.

    Its clock differs from the host's by `offset_ns`; change that for a clock that drifts.
    """

    clock: FakeClock
    offset_ns: int = 5_000_000_000
    idle_answers: bool = True
    captures: bool = False
    busy_until_ns: int = 0
    made: list[FakeEvent] = field(default_factory=list)

    def launch(self, duration_ns: int) -> None:
        """Put work into the queue."""
        self.busy_until_ns = max(self.busy_until_ns, self.clock()) + duration_ns

    def make_event(self) -> Event:
        self.made.append(FakeEvent(self))
        return self.made[-1]

    def is_capturing(self) -> bool:
        return self.captures

    def mark_streams(self) -> list[Event]:
        event = self.make_event()
        event.record()
        return [event]

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        """Return an event that is reached at once, or `None` if `idle_answers` is off."""
        if not self.idle_answers:
            return None
        event = FakeEvent(self, clock(), clock() + self.offset_ns)
        return event, event.reached_ns, 0


@dataclass
class FakeEvent:
    """An event of a `FakeDevice`, with the time on both clocks at which it is reached."""

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


@dataclass
class OpenStep:
    """A step of a fake loop. It becomes a row if its block ends without an exception."""

    recorder: Recorder
    sample_count: int
    epoch: int | None = None
    loss: float | None = None
    grad_scale: float | None = None

    def __enter__(self) -> OpenStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is None:
            self.recorder.end_step(
                self.recorder.clock(), self.sample_count, self.loss, self.grad_scale, self.epoch
            )


def report_step(tracker: Tracker, samples: int) -> None:
    """Report a step as the hooks of a framework do."""
    tracker.end_data(tracker.begin_data(), samples)
    tracker.end(tracker.begin_forward(with_gradients=True))
    tracker.end(tracker.begin_backward("torch"))
    tracker.end(tracker.begin_optimizer(1))
