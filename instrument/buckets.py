"""The gradient exchange, bucket by bucket: when each was ready, begun and done, and what was exposed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.instrument.device import DeviceTimer, Event
from profkit.instrument.recorder import Append, Recorder
from profkit.vocab import Phase

EXPOSED = "exposed"


@dataclass(frozen=True)
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


class BucketLog:
    """The buckets of one reducer. Rows go to `collectives`; the exposed part of each backward to `spans`.

    `launched` is called by the training thread when a bucket's last gradient is there, `done` by
    any thread when its result is; `completed` and `exposed` take the times of what is over.
    Reducers of one communicator share the `sequence` that counts its collectives. `done` may be called
    late, by a thread that had to wait for the interpreter: a backward that has returned has all results,
    so `end_of_backward` completes what is still pending.
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
        self._lock = threading.Lock()
        self._sequence = sequence or itertools.count()
        self._last_ready_ns = self._last_done_ns = 0
        self._pending: dict[int, Bucket] = {}

    def skipped(self) -> None:
        """Number a collective of a step that is not recorded: the ranks' rows are matched by number."""
        next(self._sequence)

    def launched(self, index: int, size: int, dtype: str) -> Bucket:
        """A bucket is ready, and goes to the library now."""
        device = self._recorder.device
        mark = device.mark() if device is not None else None
        now = self._last_ready_ns = self._clock()
        step = self._recorder.step_index
        bucket = Bucket(index, size, dtype, now, now, step, next(self._sequence), mark)
        self._pending[bucket.sequence] = bucket
        return bucket

    def done(self, bucket: Bucket) -> None:
        """Note that a bucket has its result, unless the backward's end has noted it already."""
        now = self._clock()
        if self._pending.pop(bucket.sequence, None) is not None:
            self._complete(bucket, now)

    def _complete(self, bucket: Bucket, now: int) -> None:
        with self._lock:
            self._last_done_ns = max(self._last_done_ns, now)
        if not self._recorder.recording:
            return
        row = self._row(bucket, now)
        device: DeviceTimer | None = self._recorder.device
        if device is None:
            self._append(row)
        else:
            device.hold(row, bucket.mark, device.mark(), self._append)

    def completed(self, index: int, size: int, dtype: str, ready: int, start: int, end: int, *, on_device: bool) -> None:
        """A bucket is done; `on_device`, the host does not know when, and the device is past it here."""
        bucket = Bucket(index, size, dtype, ready, start, self._recorder.step_index, next(self._sequence), None)
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
        """Complete the buckets that are pending. What follows the last gradient was exposed."""
        if self._pending:
            now = self._clock()
            for sequence in list(self._pending):
                bucket = self._pending.pop(sequence, None)
                if bucket is not None:
                    self._complete(bucket, now)
        if self._last_ready_ns and self._last_done_ns > self._last_ready_ns:
            self._recorder.keep_inner(Phase.ALLREDUCE.value, EXPOSED, self._last_ready_ns, self._last_done_ns)
        self._last_ready_ns = 0

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
