"""Records the steps and phases of a training loop. The hot path: standard library only.

A phase costs two clock readings and one list append; rows go to a sink that writes them on a
thread. Nothing in here synchronises a device, waits for another rank, or raises into the job.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from profkit.clock import Clock, now_ns
from profkit.instrument.blocks import always
from profkit.instrument.device import DeviceTimer, Event
from profkit.instrument.guard import guarded, report_failure
from profkit.instrument.ranges import Ranges
from profkit.vocab import Phase

if TYPE_CHECKING:
    from profkit.instrument.tracking.notes import Notes

T = TypeVar("T")

Row = tuple[Any, ...]
Append = Callable[[Row], None]
Keep = Callable[[Row, "Event | None", "Event | None"], None]
"""Takes the row of a span, and the device's events at its borders."""


class Sink(Protocol):
    """Where rows go; `profkit.trace.RankWriter` is one."""

    def is_full(self) -> bool:
        """Whether rows should not be taken now: too many wait already, or nothing is written any more."""

    def appender(self, table: str) -> Append: ...

    def drop(self, table: str, count: int = 1) -> None: ...


class Region(Protocol):
    """An open phase, or a region inside one."""

    bytes: int | None

    def rename(self, name: str) -> None: ...

    def __enter__(self) -> Region: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Step(Protocol):
    """An open step: what the loop knows of it is set on it before it ends."""

    sample_count: int
    epoch: int | None
    loss: float | None
    grad_scale: float | None

    def __enter__(self) -> Step: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class LoopRecorder(Protocol):
    """What a training loop calls; `Recorder` records it, `NullRecorder` does nothing."""

    def phase(self, phase: Phase | str, name: str = "") -> Region: ...

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step: ...

    def batches(self, loader: Iterable[T]) -> Iterator[T]: ...

    def begin(self) -> None: ...

    def end_backward(self) -> None: ...

    def note(self, metric: str, value: float) -> None: ...


class Span:
    """A region of the loop. Closing it makes one row, also when an exception leaves it."""

    __slots__ = ("_depth", "_mark", "_name", "_phase", "_recorder", "_start", "bytes")

    def __init__(self, recorder: Recorder, phase: str, name: str) -> None:
        self._recorder = recorder
        self._phase = phase
        self._name = name
        self.bytes: int | None = None

    def rename(self, name: str) -> None:
        """What it is turns out while it is open."""
        self._name = name

    def __enter__(self) -> Span:
        recorder = self._recorder
        if recorder._noted:
            recorder._catch_up()
        nest = recorder._local.nest
        self._depth = nest.depth
        nest.depth += 1
        if recorder._ranges is not None:
            recorder._push(self._name)
        self._mark = recorder._mark() if recorder.device is not None else None
        self._start = recorder._clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(kind.__name__ if kind is not None else None)

    def close(self, error: str | None = None) -> int:
        """End it, with the class of the exception that left it, and return when it ended."""
        recorder = self._recorder
        if recorder._noted:
            recorder._catch_up()
        end = recorder._clock()
        mark = recorder._mark() if recorder.device is not None else None
        if recorder._ranges is not None:
            recorder._pop()
        nest = recorder._local.nest
        nest.depth = self._depth
        if recorder.recording:
            row = (
                recorder.step_index,
                self._phase,
                self._name,
                self._depth,
                nest.thread,
                self._start,
                end,
                None,
                None,
                self.bytes,
                error,
            )
            try:
                recorder._keep(row, self._mark, mark)
            except Exception as failure:  # noqa: BLE001  # the border to the job: a row is lost, the job goes on
                report_failure("spans", failure)
        else:
            recorder.drop_marks(self._mark, mark)
        return end


class _OpenStep:
    """An open step. It becomes a row when its block ends without an exception."""

    __slots__ = ("_recorder", "epoch", "grad_scale", "loss", "sample_count")

    def __init__(self, recorder: Recorder, sample_count: int, epoch: int | None) -> None:
        self._recorder = recorder
        self.sample_count = sample_count
        self.epoch = epoch
        self.loss: float | None = None
        self.grad_scale: float | None = None

    def __enter__(self) -> _OpenStep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._recorder.end_step(
                self._recorder._clock(), self.sample_count, self.loss, self.grad_scale, self.epoch
            )


class Nest:
    """What a thread has of its own: how deep its open regions are nested, and its name."""

    __slots__ = ("depth", "thread")

    def __init__(self) -> None:
        self.depth = 0
        self.thread = threading.current_thread().name


class _Local(threading.local):
    def __init__(self) -> None:
        self.nest = Nest()


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
        is_measured: Callable[[int], bool] = always,
        clock: Clock = now_ns,
    ) -> None:
        self._sink = sink
        self.append_span = sink.appender("spans")
        self._keep: Keep = self._keep_row
        self.keep_rows: Callable[[list[Row]], None] = self._keep_rows
        """Takes regions of another thread or process, on the host's clock, that told of themselves later."""
        self._catch_up: Callable[[], None] = _do_nothing
        self._noted: Sized = ()
        self.notes: Notes | None = None
        """Where the hooks of a loop that is followed note what they see."""
        self._append_step = sink.appender("steps")
        self._append_sample = sink.appender("samples")
        self.settle_exchange: Callable[[], None] = _do_nothing
        """What the framework's hooks have to do at the end of a backward."""
        self.at_border: Callable[[int], object] | None = None
        """Called between two steps, with the number of the one that begins."""
        self.span_copies: list[Row] | None = None
        """Where spans go besides, while a window of steps is open."""
        self._ranges = ranges
        if ranges is not None:
            self._push: Callable[[str], object] = guarded("ranges", ranges.push, None)
            self._pop: Callable[[], object] = guarded("ranges", ranges.pop, None)
        self._clock = clock
        self._local = _Local()
        self._boundary_ns = clock()
        self.last_step_ns = 0
        self._is_measured = is_measured
        self._stopped = False
        self.device: DeviceTimer | None = None
        if device is not None:
            self.time_device(device)
        self.step_index = 0
        self.measuring = is_measured(0)
        """Whether the phases of the current step are timed; its wall clock always is."""
        self.recording = self.measuring
        """Whether rows of spans are taken now: those of the current step are there, or it does not count as measured."""
        _LIVE.add(self)

    def time_device(self, device: DeviceTimer) -> None:
        """Mark the phases' borders on a device too, from now on."""
        self._mark: Callable[[], Event | None] = guarded("device events", device.mark, None)
        self.device = device

    def stop(self) -> None:
        """Take no more rows: the run has ended, or this is a forked child, whose rows are not ours."""
        self._stopped = True
        self.recording = False
        if self.notes is not None:
            self.notes.close()

    def phase(self, phase: Phase | str, name: str = "") -> Region:
        """A region of the step: `with recorder.phase("forward"): ...`."""
        return self.open(phase, name) if self.recording else NOTHING

    def open(self, phase: Phase | str, name: str = "") -> Span:
        """A region that the caller enters and closes itself."""
        value = phase.value if isinstance(phase, Phase) else phase
        return Span(self, value, name or value)

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step:
        """One step, from the end of the last one to the end of this block."""
        return _OpenStep(self, sample_count, epoch)

    def keep_inner(self, phase: str, name: str, start: int, end: int) -> None:
        """A region inside the open phase whose borders are known only afterwards, on the host's clock."""
        if not self.recording:
            return
        nest = self._local.nest
        notes = self.notes
        depth = nest.depth
        if (
            notes is not None and self._noted
        ):  # replaying the notes now would cost more than the row
            depth += notes.open_regions()
        row = (self.step_index, phase, name, depth, nest.thread, start, end, None, None, None, None)
        if notes is not None and self._noted:
            notes.keep_rows([row])
        else:
            self._keep(row, None, None)

    def redirect(self, keep: Keep, notes: Notes, catch_up: Callable[[], None]) -> Keep:
        """Send spans through `keep` from now on, and those of other threads and processes through `notes`; returns where all went before.

        Where something is noted, regions may be open that nobody has been told of; `catch_up` does it.
        """
        before, self._keep, self.keep_rows = self._keep, keep, notes.keep_rows
        self._catch_up, self._noted, self.notes = catch_up, notes, notes
        return before

    @property
    def takes_rows(self) -> bool:
        """Whether rows are taken at all: not where the run has ended, and not in a forked child."""
        return not self._stopped

    def count_switched_off(self, most: int) -> int:
        """How many steps after this one, which is switched off, are switched off too, with nobody who wants to know of each border."""
        if self.measuring or self.at_border is not None:
            return 0
        return next(
            (number for number in range(most) if self._is_measured(self.step_index + 1 + number)),
            most,
        )

    def drop_marks(self, *marks: Event | None) -> None:
        """What happened at these borders is not recorded."""
        if self.device is not None:
            for mark in marks:
                if mark is not None:
                    self.device.drop(mark)

    def nest(self) -> Nest:
        """What the thread that calls has of its own."""
        return self._local.nest

    def begin(self, now: int | None = None) -> None:
        """Start the clock of the next step here: what lies before belongs to no step."""
        self._boundary_ns = self._clock() if now is None else now

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's batches, the wait for each timed as data; starting its workers is part of the first."""
        data = Phase.DATA
        with self.phase(data):
            iterator = iter(loader)
            batch = next(iterator, _END)
        while batch is not _END:
            yield batch
            with self.phase(data):
                batch = next(iterator, _END)

    def end_backward(self) -> None:
        """To be called inside the phase `backward`, when all gradients are there: what is left of their exchange is told apart."""
        self.settle_exchange()

    def note(self, metric: str, value: float) -> None:
        """Something that the loop knows of itself, at this moment: a row of `samples`."""
        if not self._stopped:
            self._append_sample((None, "workload", metric, self._clock(), float(value)))

    def end_step(
        self,
        end: int,
        sample_count: int,
        loss: float | None = None,
        grad_scale: float | None = None,
        epoch: int | None = None,
    ) -> None:
        """Close the step at the time `end`; the next one begins there."""
        if self._stopped:
            return
        is_full = self._sink.is_full()
        if is_full:
            self._sink.drop("steps")
        else:
            self._append_step(
                (
                    self.step_index,
                    self._boundary_ns,
                    end,
                    sample_count,
                    loss,
                    grad_scale,
                    self.recording,
                    epoch,
                )
            )
        self.last_step_ns = end - self._boundary_ns
        self._boundary_ns = end
        self.step_index += 1
        self.measuring = self._is_measured(self.step_index)
        self.recording = self.measuring and not is_full
        if self.at_border is not None:
            self.at_border(self.step_index)

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


class NullRecorder:
    """What a loop calls where profkit is switched off: nothing is timed and nothing is kept."""

    def phase(self, phase: Phase | str, name: str = "") -> Region:
        return NOTHING

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step:
        return NOTHING

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        return iter(loader)

    def begin(self) -> None:
        pass

    def end_backward(self) -> None:
        pass

    def note(self, metric: str, value: float) -> None:
        pass


class _Nothing:
    """A region and a step whose fields nobody reads."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        self.sample_count = 0
        self.epoch: int | None = None
        self.loss: float | None = None
        self.grad_scale: float | None = None

    def rename(self, name: str) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


NOTHING = _Nothing()


def _do_nothing() -> None:
    pass


_END: Any = object()

_LIVE: weakref.WeakSet[Recorder] = weakref.WeakSet()
"""Every recorder there is, so that a forked child can stop them all."""


def _stop_all() -> None:
    for recorder in list(_LIVE):
        recorder.stop()


os.register_at_fork(after_in_child=_stop_all)


def measure_span_cost(
    *, clock: Clock = now_ns, ranges: Ranges | None = None, repeats: int = 2_000
) -> float:
    """Nanoseconds that one phase costs the loop here and now, the median of a few rounds."""
    rounds = []
    for _ in range(5):
        recorder = Recorder(MemorySink(), ranges=ranges, clock=clock)
        start = clock()
        for _ in range(repeats):
            with recorder.phase(Phase.OTHER):
                pass
        rounds.append((clock() - start) / repeats)
    return sorted(rounds)[len(rounds) // 2]


class MemorySink:
    """A sink that keeps its rows in memory, by table."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}

    def is_full(self) -> bool:
        return False

    def appender(self, table: str) -> Append:
        return self.rows.setdefault(table, []).append

    def drop(self, table: str, count: int = 1) -> None:
        pass
