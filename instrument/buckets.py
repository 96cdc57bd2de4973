"""The gradient exchange, bucket by bucket: when each was ready, begun and done, and what was exposed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.instrument.device import DeviceTimer, Event
from profkit.instrument.recorder import Append, Recorder
from profkit.vocab import Phase

EXPOSED = "exposed"


@dataclass(slots=True)
class Bucket:
    """One gradient bucket that was handed to the communication library."""

    index: int
    bytes: int
    dtype: str
    ready_ns: int
    start_ns: int
    step: int
    sequence: int
    mark: Event | None
    end_ns: int = 0
    end_mark: Event | None = None


class BucketLog:
    """The buckets of one reducer. Rows go to `collectives`; the exposed part of each backward to `spans`.

    `launched` is called when a bucket's last gradient is there, `done` by any thread when its result is.
    `done` only reads the clock: it runs on a thread of the communication library, and holds the
    interpreter that the job waits for. Rows are made by `end_of_backward`. A backward that has returned
    has all results, so a bucket whose `done` is late ends there.

    `completed` and `exposed` take the times of what is over. Reducers of one communicator share the
    `sequence` that numbers its collectives.
    """

    def __init__(
        self,
        recorder: Recorder,
        append: Append,
        communicator: str,
        group_size: int,
        backend: str,
        *,
        sequence: Iterator[int] | None = None,
        clock: Clock = now_ns,
    ) -> None:
        self._recorder = recorder
        self._append = append
        self._communicator = communicator
        self._group_size = group_size
        self._backend = backend
        self._clock = clock
        self._sequence = sequence or itertools.count()
        self._pending: list[Bucket] = []

    @property
    def pending(self) -> int:
        """Number of buckets of the backward that runs."""
        return len(self._pending)

    def skipped(self) -> None:
        """Number a collective of a step that is not recorded: the ranks' rows are matched by number."""
        next(self._sequence)

    def launched(self, index: int, size: int, dtype: str) -> Bucket:
        """Note that a bucket is ready and goes to the library now."""
        step = self._recorder.step_index
        if self._pending and self._pending[-1].step != step:  # nobody reported the backward's end
            self.end_of_backward()
        device = self._recorder.device
        mark = device.mark() if device is not None else None
        now = self._clock()
        bucket = Bucket(index, size, dtype, now, now, step, next(self._sequence), mark)
        self._pending.append(bucket)
        return bucket

    def done(self, bucket: Bucket) -> None:
        """Note that a bucket has its result."""
        bucket.end_ns = self._clock()
        device: DeviceTimer | None = self._recorder.device
        if device is not None:
            bucket.end_mark = device.mark()

    def completed(
        self,
        index: int,
        size: int,
        dtype: str,
        ready: int,
        start: int,
        end: int,
        *,
        on_device: bool,
    ) -> None:
        """A bucket is done; `on_device`, the host does not know when, and the device is past it here."""
        bucket = Bucket(
            index, size, dtype, ready, start, self._recorder.step_index, next(self._sequence), None
        )
        device = self._recorder.device
        if not self._recorder.recording:
            return
        if on_device and device is not None:
            device.hold(self._row(bucket, end), None, device.mark(), self._append)
        else:
            self._append(self._row(bucket, end))

    def exposed(self, intervals: Iterable[tuple[int, int]]) -> None:
        """The backward has waited for the exchange in these intervals, each of which may come more than once."""
        for start, end in dict.fromkeys(intervals):
            self._recorder.keep_inner(Phase.ALLREDUCE.value, EXPOSED, start, end)

    def end_of_backward(self) -> None:
        """Write the rows of the buckets. What follows the last gradient was exposed."""
        buckets, self._pending = self._pending, []
        if not buckets or not self._recorder.recording:
            return
        now = self._clock()
        for bucket in buckets:
            bucket.end_ns = bucket.end_ns or now
            self._write(bucket)
        last_ready = max(bucket.ready_ns for bucket in buckets)
        last_end = max(bucket.end_ns for bucket in buckets)
        self._recorder.keep_inner(Phase.ALLREDUCE.value, EXPOSED, last_ready, last_end)

    def _write(self, bucket: Bucket) -> None:
        row = self._row(bucket, bucket.end_ns)
        device = self._recorder.device
        if device is None or bucket.end_mark is None:
            self._append(row)
        else:
            device.hold(row, bucket.mark, bucket.end_mark, self._append)

    def _row(self, bucket: Bucket, end: int) -> tuple[Any, ...]:
        return (
            self._communicator,
            bucket.sequence,
            "all_reduce",
            bucket.bytes,
            bucket.dtype,
            self._group_size,
            bucket.ready_ns,
            bucket.start_ns,
            end,
            self._backend,
            bucket.step,
            bucket.index,
        )
