"""Device times at phase boundaries, by events that are read later without waiting.

An event that is recorded on the stream is reached by the device when all work before it is done.
The training thread only records. The writer's thread asks if an event has been reached, and
never waits for one. Without a device the columns of device times stay null.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Protocol

from profkit.clock import ANCHOR_INTERVAL_NS, Clock, now_ns
from profkit.instrument.captures import CAPTURES, Captures, relax_this_thread
from profkit.instrument.guard import report_failure
from profkit.instrument.mark_budget import MarkBudget
from profkit.instrument.rows import Append, CollectiveRow, Event, EventRow, Row, SampleRow, SpanRow
from profkit.vocab import MARK_COST, EventKind, MissingTime

LARGEST_POOL = 16_384
"""Maximum number of pending events, so that a device that lags behind costs little memory.

A step of FSDP2 with 1,000 modules has 3,000 collectives with two events each.
"""

ANCHOR_TRIES = 4
"""Rows wait this many rounds for the first anchor, because the first try may be too slow."""

_BEFORE = SpanRow._fields.index("device_start_ns")
_AFTER = SpanRow._fields.index("device_end_ns") + 1
"""Positions in a row of `spans` that end and begin its parts around the device's times."""

_READY, _START, _END = map(CollectiveRow._fields.index, ("ready_ns", "start_ns", "end_ns"))
_COMMUNICATOR = CollectiveRow._fields.index("communicator")


class Device(Protocol):
    """Makes events, and ties its clock to the host's."""

    def make_event(self) -> Event: ...

    def is_capturing(self) -> bool:
        """Return true if the calling thread's current stream captures a graph."""

    def mark_streams(self) -> list[Event]:
        """Record an event on each stream that the job has used.

        Empty if the streams are not known, or if one of them captures a graph. The thread that
        calls this must be one that ends: it is left on another stream and device than before.
        """

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


Times = tuple[int | None, int | None]
"""When the device reached a row's two events."""

_Held = tuple[Row, Event | None, Event | None, Append | None, bool]
"""A row, its events, the receiver of a row of `collectives`, and its `has_own_end`."""


class DeviceTimer:
    """Marks phase boundaries on the device, and adds the device's times to rows.

    `mark`, `drop` and `hold` are called by the training thread, `collect` by the writer's thread.

    A row whose times cannot be read is counted in `missing`. A span is written with the host's
    times then. A collective is left out, because the host only knows when it was launched.
    """

    def __init__(
        self,
        device: Device,
        append: Append,
        *,
        clock: Clock = now_ns,
        largest_pool: int = LARGEST_POOL,
        captures: Captures = CAPTURES,
        samples: Append | None = None,
        events: Append | None = None,
    ) -> None:
        self._device = device
        self._append = append
        self._samples, self._events = samples, events
        self._clock = clock
        self._captures = captures
        self._largest_pool = largest_pool
        self._free: list[Event] = []
        self.pool_size = 0
        """Number of events that were made."""
        self._held: deque[_Held] = deque()
        self._anchor: DeviceAnchor | None = None
        self._next_anchor_ns = 0
        self._tries = 0
        self._why_no_anchor = MissingTime.NO_ANCHOR
        self._last_end: dict[object, int] = {}
        self._marks_read = 0
        self.budget: MarkBudget | None = None
        """Limits what marks take, once their price is known."""
        self.missing: Counter[MissingTime] = Counter()
        """Number of boundaries and rows without a device time, by reason."""
        self._noted: Counter[MissingTime] = Counter()

    def mark(self) -> Event | None:
        """Record an event on the current stream; return `None` if that cannot be done."""
        if self._captures.open or self._device.is_capturing():
            self.missing[MissingTime.CAPTURE] += 1
            return None
        try:
            if self._free:
                event = self._free.pop()
            elif self.pool_size < self._largest_pool:
                event = self._device.make_event()
                self.pool_size += 1
            else:
                self.missing[MissingTime.POOL] += 1
                return None
            event.record()
        except Exception:
            self.missing[MissingTime.FAILED] += 1
            raise
        return event

    def mark_streams(self) -> list[Event]:
        """Record an event on each stream in use, as `Device.mark_streams` does."""
        with self._captures.lock:
            return [] if self._captures.open else self._device.mark_streams()

    def have_passed(self, events: list[Event]) -> bool | None:
        """Return true if the device has reached these events; `None` during a capture."""
        with self._captures.lock:
            return None if self._captures.open else all(event.done() for event in events)

    def drop(self, event: Event | None) -> None:
        """Return an event that no row needs to the pool."""
        if event is not None:
            self._free.append(event)

    def hold(self, row: Row, start: Event | None, end: Event | None) -> None:
        """Hold a row of `spans` until its events are reached."""
        self._held.append((row, start, end, None, False))

    def hold_collective(
        self,
        row: Row,
        start: Event | None,
        end: Event | None,
        append: Append,
        *,
        has_own_end: bool = True,
    ) -> None:
        """Hold a row of `collectives` until its events are reached, then hand it to `append`.

        `start` is the time at which its data was ready. A row without `end` keeps the host's.
        Without `has_own_end`, `end` only says that the collective was over by then.
        """
        self._held.append((row, start, end, append, has_own_end and end is not None))

    def collect(self, final: bool = False) -> None:
        """Append the rows whose events have been reached, in order.

        With `final`, rows that still wait are appended without device times.
        """
        self._renew_anchor()
        waits_for_anchor = self._anchor is None and self._tries < ANCHOR_TRIES
        if final or not waits_for_anchor:
            while self._held and self._finish(self._held[0], final):
                self._held.popleft()
        if self.budget is not None:
            self.budget.look(self._marks_read)
        self._note_missing()

    def _finish(self, held: _Held, final: bool) -> bool:
        """Append one row; return false if the device has not reached its events yet."""
        row, start, end, append, has_own_end = held
        times: Times | None = None
        why = MissingTime.CAPTURE if self._captures.open else MissingTime.UNREACHED
        try:
            times = self._read(start, end)
        except Exception as error:  # noqa: BLE001  # a device that fails must not stop the rows
            why = MissingTime.FAILED
            report_failure("reading the device's clock", error)
        else:
            if times is None and not final:
                return False
        if times is None:
            self.missing[why] += 1
            times = (None, None)
        else:
            self.drop(start)
            self.drop(end)
            if self._anchor is None and (start is not None or end is not None):
                self.missing[self._why_no_anchor] += 1
        self._marks_read += (start is not None) + (end is not None)
        if append is not None:
            if times[0 if end is None else 1] is not None:
                self._finish_collective(row, times, append, has_own_end)
        elif times == (None, None):
            self._append(row)
        else:
            self._append(row[:_BEFORE] + times + row[_AFTER:])
        return True

    def _finish_collective(self, row: Row, times: Times, append: Append, has_own_end: bool) -> None:
        """Append a collective, whose needed device times are known.

        The collectives of a communicator run one after the other, in the order of their launch.
        """
        ready, end = times
        values = list(row)
        if ready is not None:
            values[_READY] = values[_START] = ready
        if end is not None:
            values[_END] = end
        if end is not None and has_own_end:
            if ready is not None:
                before = self._last_end.get(row[_COMMUNICATOR], ready)
                values[_START] = min(max(ready, before), end)
            self._last_end[row[_COMMUNICATOR]] = end
        append(tuple(values))

    def _read(self, start: Event | None, end: Event | None) -> Times | None:
        """Return when the events were reached, or `None` if they are not, or may not be asked."""
        with self._captures.lock:
            if self._captures.open:
                return None
            if end is not None and not end.done():
                return None
            if start is not None and not _is_before(start, end) and not start.done():
                return None
            anchor = self._anchor
            if anchor is None:
                return (None, None)
            return (
                None if start is None else anchor.host_ns_of(start),
                None if end is None else anchor.host_ns_of(end),
            )

    def _renew_anchor(self) -> None:
        now = self._clock()
        if now < self._next_anchor_ns:
            return
        if not self._tries:
            relax_this_thread()
        self._tries += 1
        with self._captures.lock:
            if self._captures.open:
                return
            try:
                reached = self._device.reach_idle_event(self._clock)
            except Exception as error:  # noqa: BLE001  # rows are written without device times
                report_failure("anchor of the device's clock", error)
                self._why_no_anchor = MissingTime.FAILED
                return
        if reached is not None:
            self._anchor = DeviceAnchor(*reached)
            self._next_anchor_ns = now + ANCHOR_INTERVAL_NS

    def note_price(self, price_ns: float) -> None:
        """Write down what one mark costs the training thread."""
        if self._samples is not None:
            self._samples(SampleRow(None, "profkit", MARK_COST, self._clock(), price_ns))

    def _note_missing(self) -> None:
        """Write down how many times are missing, if there are more than the last time."""
        if self._events is None or self.missing == self._noted:
            return
        self._noted = self.missing.copy()
        for why, count in self._noted.items():
            self._events(_untimed(self._clock(), why, count))


def _is_before(start: Event, end: Event | None) -> bool:
    """Return true if an event is reached when another one is: it came first on its stream."""
    stream = getattr(start, "stream", None)
    return stream is not None and stream is getattr(end, "stream", None)


def note_no_events(events: Append, clock: Clock = now_ns) -> None:
    """Write down that this device gives no times at all."""
    events(_untimed(clock(), MissingTime.NO_EVENTS, 1))


def _untimed(time_ns: int, why: MissingTime, count: int) -> EventRow:
    return EventRow(None, time_ns, EventKind.UNTIMED, why.value, None, float(count))
