"""Records the steps and phases of a training loop. The hot path: standard library only.

A phase costs two clock readings and one list append; rows go to a sink that writes them on a
thread. Nothing in here synchronises a device, waits for another rank, or raises into the job.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

from profkit.clock import Clock, now_ns
from profkit.instrument.device import DeviceTimer
from profkit.instrument.guard import guarded, report_failure
from profkit.instrument.mark_budget import MarkBudget
from profkit.instrument.mark_price import MarkPrice
from profkit.instrument.ranges import Ranges
from profkit.instrument.rows import Append, Event, EventRow, Keep, Row, SampleRow, Sink, SpanRow
from profkit.instrument.tracking.notes import Notes
from profkit.vocab import EventKind, Phase

T = TypeVar("T")

BLOCK = 8
"""So many steps are timed one after the other where not all are."""

STEPS_DECIDED = 64
"""A change of what is measured takes effect so many steps later."""


@dataclass(slots=True, eq=False)
class Span:
    """A region of the loop. Closing it makes one row, also if an exception leaves it."""

    _recorder: Recorder
    _phase: str
    _name: str
    bytes: int | None = None
    _depth: int = field(init=False)
    _mark: Event | None = field(init=False)
    _start: int = field(init=False)

    def __enter__(self) -> Span:
        recorder = self._recorder
        if recorder._noted:
            recorder._catch_up()
        nest = recorder.nests.own
        self._depth = nest.depth
        nest.depth += 1
        if recorder._ranges is not None:
            recorder._push(self._name)
        self._mark = recorder._mark() if recorder.device is not None else None
        self._start = recorder.clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(kind.__name__ if kind is not None else None)

    def close(self, error: str | None = None) -> int:
        """End the region and return the time; `error` is the class of an exception that left it."""
        recorder = self._recorder
        if recorder._noted:
            recorder._catch_up()
        end = recorder.clock()
        mark = recorder._mark() if recorder.device is not None else None
        if recorder._ranges is not None:
            recorder._pop()
        nest = recorder.nests.own
        nest.depth = self._depth
        if not recorder.recording:
            recorder.drop_marks(self._mark, mark)
            return end
        # A `SpanRow` as a plain tuple: naming its fields here costs 0.25 us per phase.
        row = (
            recorder.step_now, self._phase, self._name, self._depth, nest.thread,
            self._start, end, None, None, self.bytes, error,
        )  # fmt: skip
        try:
            recorder._keep(row, self._mark, mark)
        except Exception as failure:  # noqa: BLE001  # a lost row must not stop the job
            report_failure("spans", failure)
        return end


@dataclass(slots=True, eq=False)
class Nest:
    """One thread's name and the depth of its open regions."""

    thread: str = field(default_factory=lambda: threading.current_thread().name)
    depth: int = 0


class PerThread(threading.local, Generic[T]):
    """A value that each thread makes for itself."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.own = make()


class Recorder:
    """Times a loop's phases and steps.

    Steps tile the time of the loop: a step begins where the last one ended, so that waiting for a
    batch belongs to the step that trains on it, and nothing falls between two steps.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        ranges: Ranges | None = None,
        device: DeviceTimer | None = None,
        is_measured: Callable[[int], bool] = lambda step: True,
        clock: Clock = now_ns,
    ) -> None:
        self._sink = sink
        self.clock = clock
        self.append_span = sink.appender("spans")
        self.step_index = 0
        """The number of the first step whose end has not been reported; see `step_now`."""
        self.recording = False
        """True if spans of the current step are being recorded."""
        self.nests = PerThread(Nest)
        """The nesting of each thread."""
        self._keep: Keep = self._keep_row
        self.keep_rows: Callable[[list[Row]], None] = self._keep_rows
        """Takes rows that another thread or process reports later, on the host's clock."""
        self._catch_up: Callable[[], None] = lambda: None
        self._noted: Sized = ()
        self.notes: Notes | None = None
        """Buffers reports of hooks, if hooks follow this loop."""
        self.span_copies: list[Row] | None = None
        """Receives a copy of every span while a window of steps is open."""
        self.device: DeviceTimer | None = None
        self.marker: Callable[[], Event | None] | None = None
        """Records an event at a boundary, if there is a device."""
        self._ranges, self._pid = ranges, os.getpid()
        self.has_ranges = ranges is not None
        """True if regions are also opened as NVTX ranges."""
        if ranges is not None:
            self._push: Callable[[str], object] = guarded("ranges", ranges.push, None)
            self._pop: Callable[[], object] = guarded("ranges", ranges.pop, None)
            self._mark_step: Callable[[int | None], object] = guarded("ranges", ranges.step, None)
        self._append_step = sink.appender("steps")
        self._append_sample = sink.appender("samples")
        self._append_event = sink.appender("events")
        self.at_border: Callable[[int], object] | None = None
        """Called between two steps, with the number of the one that begins."""
        self.boundary_ns = clock()
        """The time at which the last step ended."""
        self.last_step_ns = 0
        self._is_measured = self._measured_at_first = is_measured
        self.in_flight: weakref.WeakSet[Any] = weakref.WeakSet()
        """Logs of collectives, whose `entered` yields those that this process has entered."""
        self.in_worker: Callable[[Any], object] = lambda meter: None
        """Called in each worker process of a loader, with the meter of its batches."""
        self.stopped = False
        """True once the run has ended, and in a forked child."""
        self.measuring = self.recording = is_measured(0)
        """True if the phases of the current step are timed; its wall clock always is."""
        if device is not None:
            self.time_device(device)
        _LIVE.add(self)

    def stop(self) -> None:
        """Take no more rows, because the run has ended or this is a forked child."""
        self.stopped = True
        self.recording = False
        if self._ranges is not None and self._pid == os.getpid():  # a child has no range open
            self._mark_step(None)
        if self.notes is not None:
            self.notes.close()

    def count_alike(self, most: int) -> int:
        """Return how many steps after this one are measured as it is, and need no call between."""
        if self.at_border is not None or self.recording != self.measuring:
            return 0
        for number in range(most):
            if self._is_measured(self.step_index + 1 + number) != self.measuring:
                return number
        return most

    def measures(self, step: int) -> bool:
        """Return true if the phases of this step are timed."""
        return self._is_measured(step)

    def time_fewer(self, every: int) -> None:
        """Time the phases of one in `every` blocks of steps, because marks cost too much.

        It begins some steps later: what is measured of the next ones may be decided already. The
        windows of a user's plan need their phases, so a job with a plan is left as it is.
        """
        if self.at_border is not None:
            return
        first, measured = self.step_now + STEPS_DECIDED, self._measured_at_first

        def is_measured(step: int) -> bool:
            return measured(step) and (step < first or (step // BLOCK) % every == 0)

        self._is_measured = is_measured
        share = f"phases of all but one in {every} steps: their marks on the device cost too much"
        self.note_event(EventKind.UNMEASURED, share, "")

    def begin(self, now: int | None = None) -> None:
        """Begin the next step here; the time before belongs to no step."""
        self.boundary_ns = self.clock() if now is None else now
        if self._ranges is not None:
            self._mark_step(self.step_index)

    def note(self, metric: str, value: float) -> None:
        """Record a reading of the loop's own, now, as a row of `samples`."""
        if not self.stopped:
            self._append_sample(SampleRow(None, "workload", metric, self.clock(), float(value)))

    def note_event(self, kind: EventKind, name: str, detail: str) -> None:
        """Record an event of the loop's own, in the present step."""
        if not self.stopped:
            self._append_event(EventRow(self.step_index, self.clock(), kind, name, detail))

    def end_step(
        self,
        end: int,
        sample_count: int,
        loss: float | None = None,
        grad_scale: float | None = None,
        epoch: int | None = None,
    ) -> None:
        """Close the step at the time `end`; the next one begins there."""
        if self.stopped:
            return
        is_full, index, start = self._sink.is_full(), self.step_index, self.boundary_ns
        if is_full:
            self._sink.drop("steps")
        else:
            measured = self.recording
            # A `StepRow` as a plain tuple, as in `Span.close`.
            row = (index, start, end, sample_count, loss, grad_scale, measured, epoch)
            self._append_step(row)
        self.last_step_ns = end - start
        self.boundary_ns = end
        self.step_index = index + 1
        if self._ranges is not None:
            self._mark_step(self.step_index)
        self.measuring = self._is_measured(self.step_index)
        self.recording = self.measuring and not is_full
        if self.at_border is not None:
            self.at_border(self.step_index)

    @property
    def step_now(self) -> int:
        """The number of the step that runs, also if the end of earlier ones is only noted."""
        notes = self.notes
        return self.step_index if notes is None else max(self.step_index, notes.step)

    def time_device(self, device: DeviceTimer) -> None:
        """Mark the boundaries of phases on a device too, from now on."""
        mark: Callable[[], Event | None] = guarded("device events", device.mark, None)

        def stop_timing(price_ns: float) -> None:
            self._use_marker(mark)
            device.note_price(price_ns)
            device.budget = MarkBudget(self, price_ns, self.clock)

        self._use_marker(guarded("device events", MarkPrice(mark, device, stop_timing), None))
        self.device = device

    def _use_marker(self, mark: Callable[[], Event | None]) -> None:
        self._mark = self.marker = mark

    def phase(self, phase: Phase | str, name: str = "") -> AbstractContextManager[Any]:
        """Return a region of the step, for `with recorder.phase("forward"): ...`."""
        return self.open(phase, name) if self.recording else nullcontext()

    def open(self, phase: Phase | str, name: str = "") -> Span:
        """Return a region that the caller enters and closes."""
        value = phase.value if isinstance(phase, Phase) else phase
        return Span(self, value, name or value)

    def keep_inner(self, phase: str, name: str, start: int, end: int) -> None:
        """Record a region inside the open phase whose times are known only afterwards."""
        if not self.recording:
            return
        nest, notes = self.nests.own, self.notes if self._noted else None
        depth = nest.depth if notes is None else nest.depth + notes.open_regions()
        # A `SpanRow` as a plain tuple, as in `Span.close`.
        row = (self.step_now, phase, name, depth, nest.thread, start, end, None, None, None, None)
        if notes is None:
            self._keep(row, None, None)
        else:  # replaying the notes now would cost more than buffering the row
            notes.keep_rows([row])

    def keep_marked(
        self, phase: str, name: str, times: tuple[int, int], marks: tuple[Event, Event]
    ) -> None:
        """Record a region inside the open phase that lies between two events of the device."""
        if not self.recording:
            self.drop_marks(*marks)
            return
        if self._noted:
            self._catch_up()  # rows with events cannot be buffered
        nest = self.nests.own
        row = SpanRow(self.step_now, phase, name, nest.depth, nest.thread, *times)
        self._keep(row, *marks)

    def redirect(self, keep: Keep, notes: Notes, catch_up: Callable[[], None]) -> Keep:
        """Send spans through `keep`, and rows of other threads through `notes`.

        Returns the previous receiver of spans. While `notes` holds anything, regions may be open
        that `keep` does not know; `catch_up` replays them.
        """
        before, self._keep, self.keep_rows = self._keep, keep, notes.keep_rows
        self._catch_up, self._noted, self.notes = catch_up, notes, notes
        return before

    def drop_marks(self, *marks: Event | None) -> None:
        """Release the events of a region that is not recorded."""
        if self.device is not None:
            for mark in marks:
                self.device.drop(mark)

    def _keep_row(self, row: Row, start: Event | None, end: Event | None) -> None:
        if self.span_copies is not None:
            self.span_copies.append(row)
        if self.device is None:
            self.append_span(row)
        else:
            self.device.hold(row, start, end)

    def _keep_rows(self, rows: list[Row]) -> None:
        for row in rows:
            self._keep(row, None, None)


_LIVE: weakref.WeakSet[Recorder] = weakref.WeakSet()
"""All recorders of the process, so that a forked child can stop them."""


os.register_at_fork(after_in_child=lambda: list(map(Recorder.stop, list(_LIVE))))


def measure_span_cost(
    *, clock: Clock = now_ns, ranges: Ranges | None = None, repeats: int = 2_000
) -> float:
    """Return the nanoseconds that one phase costs the loop here, as the median of five rounds."""
    rounds = []
    for _ in range(5):
        recorder = Recorder(MemorySink(), ranges=ranges, clock=clock)
        start = clock()
        for _ in range(repeats):
            with recorder.phase(Phase.OTHER):
                pass
        rounds.append((clock() - start) / repeats)
    return sorted(rounds)[len(rounds) // 2]


@dataclass(eq=False)
class MemorySink:
    """A sink that keeps its rows in memory, by table."""

    rows: dict[str, list[Row]] = field(default_factory=dict)

    def is_full(self) -> bool:
        return False

    def appender(self, table: str) -> Append:
        return self.rows.setdefault(table, []).append

    def drop(self, table: str, count: int = 1) -> None:
        pass
