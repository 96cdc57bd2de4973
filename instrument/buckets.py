"""Times the gradient exchange per bucket, and the part of it that the backward waited for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from profkit.clock import Clock, now_ns
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, CollectiveRow, Event
from profkit.vocab import Phase

EXPOSED = "exposed"
"""The name of the region in which a backward waits for the exchange."""


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
    """Records the buckets of one reducer in `collectives`, and their exposed part in `spans`.

    `launched` is called when a bucket's last gradient is there, `done` by any thread when its
    result is. `done` only reads the clock, because it runs on a thread of the communication library
    and holds the interpreter that the job waits for. `end_of_backward` makes the rows. A backward
    that has returned has all results, so a bucket whose `done` is late ends there.

    `completed` and `exposed` take the times of buckets that are over. Reducers of one communicator
    share the `sequence` that numbers its collectives.
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
        """Number a collective of a step that is not recorded: ranks are matched by number."""
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
        device = self._recorder.device
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
        """Record a bucket that is done.

        With `on_device`, only the device knows when it ended, and has passed that point now.
        """
        recorder = self._recorder
        number = next(self._sequence)
        if not recorder.recording:
            return
        bucket = Bucket(index, size, dtype, ready, start, recorder.step_index, number, None)
        row = self._row(bucket, end)
        device = recorder.device
        if on_device and device is not None:
            device.hold_collective(row, None, device.mark(), self._append)
        else:
            self._append(row)

    def exposed(self, intervals: Iterable[tuple[int, int]]) -> None:
        """Record when the backward waited for the exchange; intervals may be repeated."""
        for start, end in dict.fromkeys(intervals):
            self._recorder.keep_inner(Phase.ALLREDUCE.value, EXPOSED, start, end)

    def end_of_backward(self) -> None:
        """Write the rows of the buckets. Time after the last gradient was exposed."""
        buckets, self._pending = self._pending, []
        if not buckets or not self._recorder.recording:
            return
        now = self._clock()
        device = self._recorder.device
        last_ready = last_end = 0
        for bucket in buckets:
            bucket.end_ns = bucket.end_ns or now
            last_ready = max(last_ready, bucket.ready_ns)
            last_end = max(last_end, bucket.end_ns)
            row = self._row(bucket, bucket.end_ns)
            if device is None or bucket.end_mark is None:
                self._append(row)
            else:
                device.hold_collective(row, bucket.mark, bucket.end_mark, self._append)
        self._recorder.keep_inner(Phase.ALLREDUCE.value, EXPOSED, last_ready, last_end)

    def _row(self, bucket: Bucket, end: int) -> CollectiveRow:
        return CollectiveRow(
            communicator=self._communicator,
            sequence=bucket.sequence,
            op="all_reduce",
            bytes=bucket.bytes,
            dtype=bucket.dtype,
            group_size=self._group_size,
            ready_ns=bucket.ready_ns,
            start_ns=bucket.start_ns,
            end_ns=end,
            backend=self._backend,
            step=bucket.step,
            bucket=bucket.index,
        )
