"""Records the steps and phases of a training loop. The hot path: standard library only.

A phase costs two clock readings and one list append; rows go to a sink that writes them on a
thread. Nothing in here synchronises a device, waits for another rank, or raises into the job.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from profkit.clock import Clock, now_ns
from profkit.instrument.device import DeviceTimer
from profkit.instrument.loop_recorder import Step
from profkit.instrument.ranges import Ranges
from profkit.instrument.rows import Append, Row, SampleRow, Sink
from profkit.instrument.spans import SpanRecorder
from profkit.vocab import Phase

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _OpenStep:
    """An open step. It becomes a row if its block ends without an exception."""

    recorder: Recorder
    sample_count: int
    epoch: int | None
    loss: float | None = None
    grad_scale: float | None = None

    def __enter__(self) -> _OpenStep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.recorder.end_step(
                self.recorder.clock(), self.sample_count, self.loss, self.grad_scale, self.epoch
            )


class Recorder(SpanRecorder):
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
        super().__init__(sink, clock, ranges)
        self._append_step = sink.appender("steps")
        self._append_sample = sink.appender("samples")
        self.settle_exchange: Callable[[], None] = lambda: None
        """Called at the end of a backward, for the framework's hooks."""
        self.at_border: Callable[[int], object] | None = None
        """Called between two steps, with the number of the one that begins."""
        self.boundary_ns = clock()
        """The time at which the last step ended."""
        self.last_step_ns = 0
        self._is_measured = is_measured
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
        if self.notes is not None:
            self.notes.close()

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step:
        """Return a step, from the end of the last one to the end of this block."""
        return _OpenStep(self, sample_count, epoch)

    def count_alike(self, most: int) -> int:
        """Return how many steps after this one are measured as it is, and need no call between."""
        if self.at_border is not None or self.recording != self.measuring:
            return 0
        for number in range(most):
            if self._is_measured(self.step_index + 1 + number) != self.measuring:
                return number
        return most

    def begin(self, now: int | None = None) -> None:
        """Begin the next step here; the time before belongs to no step."""
        self.boundary_ns = self.clock() if now is None else now

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches and time each wait as data; the first starts the workers."""
        data = Phase.DATA
        with self.phase(data):
            iterator = iter(loader)
            batch = next(iterator, _END)
        while batch is not _END:
            yield batch
            with self.phase(data):
                batch = next(iterator, _END)

    def end_backward(self) -> None:
        """Record the rest of the gradient exchange; called at the end of the phase `backward`."""
        self.settle_exchange()

    def note(self, metric: str, value: float) -> None:
        """Record a reading of the loop's own, now, as a row of `samples`."""
        if not self.stopped:
            self._append_sample(SampleRow(None, "workload", metric, self.clock(), float(value)))

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
        self.measuring = self._is_measured(self.step_index)
        self.recording = self.measuring and not is_full
        if self.at_border is not None:
            self.at_border(self.step_index)


_END: Any = object()

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
