"""The rows that `instrument` makes, and the interfaces between its parts.

This module imports nothing else of `instrument`, so every part may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from profkit.vocab import EventKind

Row = tuple[Any, ...]
"""A row of any table, without the rank. It may miss trailing columns that are nullable."""

Append = Callable[[Row], None]


class Event(Protocol):
    """One event of a device, as `torch.cuda.Event`."""

    def record(self) -> None:
        """Put it on the current stream."""

    def done(self) -> bool:
        """Return true if the device has reached it. Must not wait."""

    def ns_since(self, earlier: Any) -> float:
        """Return the device time in nanoseconds since another event that was reached."""


Keep = Callable[[Row, Event | None, Event | None], None]
"""Takes the row of a span, and the device's events at its start and its end."""

TimedRow = tuple[Row, Event | None, Event | None]
"""The arguments of a `Keep`: a row of `spans` and the events at its start and its end."""


class SpanRow(NamedTuple):
    """A row of `spans`, without the rank."""

    step: int | None
    phase: str
    name: str
    depth: int
    thread: str
    start_ns: int
    end_ns: int
    device_start_ns: int | None = None
    device_end_ns: int | None = None
    bytes: int | None = None
    error: str | None = None


class StepRow(NamedTuple):
    """A row of `steps`, without the rank."""

    step: int
    start_ns: int
    end_ns: int
    sample_count: int
    loss: float | None
    grad_scale: float | None
    instrumented: bool
    epoch: int | None


class CollectiveRow(NamedTuple):
    """A row of `collectives`, without the rank."""

    communicator: str
    sequence: int
    op: str
    bytes: int
    dtype: str
    group_size: int
    ready_ns: int | None
    start_ns: int
    end_ns: int
    backend: str
    step: int | None
    bucket: int | None = None
    dimension: str | None = None
    module: str | None = None
    microbatch: int | None = None


class SampleRow(NamedTuple):
    """A row of `samples`, without the rank."""

    device: str | None
    source: str
    metric: str
    time_ns: int
    value: float


class EventRow(NamedTuple):
    """A row of `events`, without the rank."""

    step: int | None
    time_ns: int
    kind: EventKind
    name: str
    detail: str | None = None
    value: float | None = None


COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "spans": SpanRow._fields,
    "steps": StepRow._fields,
    "collectives": CollectiveRow._fields,
    "samples": SampleRow._fields,
    "events": EventRow._fields,
}
"""The columns of each table that rows of this package hold, for the writer to check."""


class Sink(Protocol):
    """Takes rows. `profkit.trace.RankWriter` is one."""

    def is_full(self) -> bool:
        """Return true if no rows can be taken now: the writer lags behind or has stopped."""

    def appender(self, table: str) -> Append: ...

    def drop(self, table: str, count: int = 1) -> None: ...


class BatchTimes(NamedTuple):
    """Times of the making of one batch; `collate_ns` is 0 if nothing collated it."""

    worker: int
    start_ns: int
    collate_ns: int
    end_ns: int
    blocked_ns: int
    processor_ns: int


class Meter(NamedTuple):
    """Times the batches that this process makes."""

    begin: Callable[[Any], Any]
    """Begin a fetcher's batch; returns what `end` takes, or `None` if it is not timed."""

    end: Callable[[Any], None]
    """End a batch that was made."""

    drop: Callable[[Any], None]
    """End a batch that raised, as at the end of a loader."""


class Followed:
    """An open region of the loop that trains, from its beginning until `Tracker.end`.

    A muted region produces no row, but its nesting is tracked. `outer` is the phase around it.
    """

    __slots__ = ("bytes", "depth", "mark", "muted", "name", "outer", "phase", "start")

    bytes: int | None
    depth: int
    mark: Event | None
    muted: bool
    name: str
    outer: str
    phase: str
    start: int


Opened = Followed | int | None
"""Returned by a hook that begins a region: the region, a note's number, or `None` if ignored."""
