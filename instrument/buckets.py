"""Times the gradient exchange per bucket, and the part of it that the backward waited for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from profkit.clock import Clock, now_ns
from profkit.instrument.collectives import Entered
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, CollectiveRow, Event
from profkit.instrument.sent import Part, name_group
from profkit.vocab import Phase

EXPOSED = "exposed"
"""The name of the region in which a backward waits for the exchange."""


_ALLREDUCE = Phase.ALLREDUCE.value

COMPLETES_WHEN_DONE = frozenset({"gloo"})
"""Backends whose futures are complete when the exchange is done, so that the host can time it.

NCCL's are complete when the exchange is launched: only the device knows when it is done.
"""


class To(NamedTuple):
    """The ranks that a bucket is sent to, as rows name them."""

    communicator: str
    group_size: int
    dimension: str | None


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
    op: str = "all_reduce"
    to: To | None = None
    """The ranks that it is sent to, if they are not the reducer's."""


class BucketLog:
    """Records the buckets of one reducer in `collectives`, and their exposed part in `spans`.

    `launched` is called when a bucket's last gradient is there, `done` by any thread when its
    result is. `done` only reads the clock, because it runs on a thread of the communication library
    and holds the interpreter that the job waits for. `end_of_backward` makes the rows. A backward
    that has returned has all results, so a bucket whose `done` is late ends there.

    On a device, the host is ahead of the work. There, the exposed part lies between two marks on
    the stream that computes: one when the last gradient is ready, and one when the backward has
    returned, for which that stream waits for all buckets.

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
        unmeasured: Callable[[str], None] = lambda _: None,
        dimension: str | None = None,
    ) -> None:
        self._recorder = recorder
        self._append = append
        self.communicator = communicator
        self._to = To(communicator, group_size, dimension)
        self._backend = backend
        self._host_knows_end = backend in COMPLETES_WHEN_DONE
        self._clock = clock
        self.sequence = sequence or itertools.count()
        self._unmeasured = unmeasured
        recorder.in_flight.add(self)
        self._pending: list[Bucket] = []
        self._tail: Event | None = None
        self.expected = 0
        """Number of buckets of the backward before, which tells which bucket is the last."""

    def entered(self) -> Iterator[Entered]:
        """Yield the buckets of the backward that runs, for a thread that looks from outside."""
        for bucket in list(self._pending):
            index, since_ns, done = bucket.index, bucket.start_ns, bucket.end_ns > 0
            size, dtype = bucket.bytes, bucket.dtype
            named = self.name(bucket.sequence, index, size, dtype, since_ns, done=done)
            group = name_group(bucket.to.communicator) if bucket.to else named.group
            yield named._replace(op=bucket.op, group=group)

    def name(
        self, sequence: int, index: int, size: int, dtype: str, since_ns: int, *, done: bool
    ) -> Entered:
        """Return a bucket of this reducer as a collective that was entered."""
        name = name_group(self.communicator)
        return Entered(name, sequence, "all_reduce", size, dtype, done, since_ns, index)

    @property
    def pending(self) -> int:
        """Number of buckets of the backward that runs."""
        return len(self._pending)

    def skipped(self) -> None:
        """Number a collective of a step that is not recorded: ranks are matched by number."""
        next(self.sequence)

    def launched(self, index: int, size: int, dtype: str) -> Bucket:
        """Note that a bucket is ready and goes to the library now."""
        step = self._recorder.step_now
        pending = self._pending
        if pending and pending[-1].step != step:  # nobody reported the backward's end
            self._end(is_reported=False)
            pending = self._pending
        device = self._recorder.device
        mark = None
        if device is not None:
            mark = device.mark()
            if len(pending) + 1 >= self.expected:
                device.drop(self._tail)
                self._tail = device.mark()
        now = self._clock()
        bucket = Bucket(index, size, dtype, now, now, step, next(self.sequence), mark)
        pending.append(bucket)
        return bucket

    def describe(
        self, bucket: Bucket, parts: Sequence[Part], sequences: Mapping[str, Iterator[int]]
    ) -> None:
        """Note what a communication hook has sent in place of the bucket, and to whom."""
        first = parts[0]
        bucket.op, bucket.dtype = first.op, first.dtype
        bucket.bytes = sum(part.bytes for part in parts)
        group = first.group
        if group.name != self.communicator:
            bucket.to = To(group.name, group.size, group.dimension)
            bucket.sequence = next(sequences[group.name])

    def drop(self, bucket: Bucket) -> None:
        """Forget a bucket of which nothing was sent."""
        self._pending.remove(bucket)
        self._recorder.drop_marks(bucket.mark)

    def done(self, bucket: Bucket) -> None:
        """Note that a bucket has its result."""
        bucket.end_ns = self._clock()
        device = self._recorder.device
        if device is not None and not self._host_knows_end:
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
        mark: Event | None = None,
    ) -> None:
        """Record a bucket that is done.

        With `on_device`, only the device knows when it ended, and has passed that point now. `mark`
        is where its last gradient was ready.
        """
        recorder = self._recorder
        number = next(self.sequence)
        if not recorder.recording:
            recorder.drop_marks(mark)
            return
        bucket = Bucket(index, size, dtype, ready, start, recorder.step_now, number, mark)
        row = self._row(bucket, end)
        device = recorder.device
        if not on_device or device is None:
            self._append(row)
            return
        over = device.mark()
        if over is None:
            device.drop(mark)
        else:
            device.hold_collective(row, mark, over, self._append, has_own_end=False)

    def exposed(self, intervals: Iterable[tuple[int, int]]) -> None:
        """Record when the backward waited for the exchange; intervals may be repeated."""
        for start, end in dict.fromkeys(intervals):
            self._recorder.keep_inner(_ALLREDUCE, EXPOSED, start, end)

    def end_of_backward(self) -> None:
        """Write the rows of the buckets. Time after the last gradient was exposed."""
        if not self._pending:
            return
        recorder = self._recorder
        if recorder.device is None and self._host_knows_end and recorder.recording:
            self._end_on_host()
        else:
            self._end(is_reported=True)

    def _end_on_host(self) -> None:
        """Write the rows of buckets that only the host times.

        This is `_end` without its other cases, and the rows are plain tuples. The code is cold when
        a backward ends, so that every call in it costs a microsecond.
        """
        buckets, self._pending = self._pending, []
        self.expected = len(buckets)
        now = self._clock()
        last_ready = last_end = 0
        for bucket in buckets:
            ready, end = bucket.ready_ns, bucket.end_ns or now
            last_ready = max(last_ready, ready)
            last_end = max(last_end, end)
            name, group_size, dimension = bucket.to or self._to
            row = (name, bucket.sequence, bucket.op, bucket.bytes, bucket.dtype)
            times = (group_size, ready, bucket.start_ns, end)
            last = (self._backend, bucket.step, bucket.index, dimension)
            self._append((*row, *times, *last))
        self._recorder.keep_inner(_ALLREDUCE, EXPOSED, last_ready, last_end)

    def _end(self, *, is_reported: bool) -> None:
        buckets, self._pending = self._pending, []
        tail, self._tail = self._tail, None
        self.expected = len(buckets)
        recorder, device = self._recorder, self._recorder.device
        if not recorder.recording:
            if device is not None:
                device.drop(tail)
                for bucket in buckets:
                    recorder.drop_marks(bucket.mark, bucket.end_mark)
            return
        now = self._clock()
        last_ready = last_end = 0
        for bucket in buckets:
            bucket.end_ns = bucket.end_ns or now
            last_ready = max(last_ready, bucket.ready_ns)
            last_end = max(last_end, bucket.end_ns)
            self._write(bucket)
        if device is None:
            if self._host_knows_end:
                recorder.keep_inner(_ALLREDUCE, EXPOSED, last_ready, last_end)
            else:
                self._unmeasured(f"gradient exchange over {self._backend} without device times")
            return
        end = device.mark() if is_reported else None
        if tail is None or end is None:
            recorder.drop_marks(tail, end)
            return
        recorder.keep_marked(_ALLREDUCE, EXPOSED, (last_ready, now), (tail, end))

    def _write(self, bucket: Bucket) -> None:
        """Write a bucket's row if its end is known, by the host or by the device."""
        row = self._row(bucket, bucket.end_ns)
        device = self._recorder.device
        if device is None:
            if self._host_knows_end:
                self._append(row)
        elif bucket.end_mark is not None or (self._host_knows_end and bucket.mark is not None):
            device.hold_collective(row, bucket.mark, bucket.end_mark, self._append)
        else:
            device.drop(bucket.mark)

    def _row(self, bucket: Bucket, end: int) -> CollectiveRow:
        name, group_size, dimension = bucket.to or self._to
        return CollectiveRow(
            communicator=name,
            sequence=bucket.sequence,
            op=bucket.op,
            bytes=bucket.bytes,
            dtype=bucket.dtype,
            group_size=group_size,
            ready_ns=bucket.ready_ns,
            start_ns=bucket.start_ns,
            end_ns=end,
            backend=self._backend,
            step=bucket.step,
            bucket=bucket.index,
            dimension=dimension,
        )
