"""Times a loader's batches as they are made: in workers, in a thread, or in the loop.

A worker notes each batch's times in a ring of shared memory, under the batch's number. The process
that trains reads them when it takes the batch. The batch itself is not touched, and nobody waits:
if a slot holds another batch's times, nothing is recorded. The pieces become rows of `spans`, of
the phase `data`, at depth 1:

- `read`: the thread was blocked inside `dataset[index]`: wall time minus processor time minus the
  wait for a core. That is waiting for files, and for other threads or processes if it uses some;
- `decode`: it ran on a processor there: decoding and transforms;
- `collate`: `collate_fn`, by the wall clock;
- `queue`: from then until the process that trains has the batch: transport, pinning, waiting its
  turn.

Reading and decoding alternate within a batch. Their rows are laid end to end from its beginning,
each with its whole length. The rest until `collate` is the wait for a core. If the kernel does not
count that wait (`/proc/thread-self/schedstat`), it is part of `read`. The same holds for short
batches in the loop itself, where reading the counter would cost too much.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profkit.clock import now_ns
from profkit.instrument.loading.ring import Ring
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, BatchTimes, Row, SampleRow, SpanRow
from profkit.vocab import LOADER_WORKER, QUEUE_DEPTH, Phase

MAX_DEPTHS_BEFORE_TRAINING = 10_000
"""Queue depths kept before the first step ends: a process that only infers keeps no more."""

_DATA = Phase.DATA.value


@dataclass(eq=False)
class Channel:
    """State of one loader that has workers, in the process that trains."""

    ring: Ring
    epoch: int = 0
    arrived: deque[int] = field(default_factory=deque)
    """Numbers of arrived batches in the loop's order, if the loader does not keep them."""
    latest: int = -1
    """The number of the batch that arrived last."""
    next_task: int = 0
    """The first batch that the loop has not taken, if it takes them in order."""


class _Starting(threading.local):
    """The ring of the loader whose workers this thread starts now; forks find it here."""

    ring: Ring | None = None


class Waiting(NamedTuple):
    """The time at which the loop asked for a batch, and how many were finished then."""

    time_ns: int
    depth: int
    channel: Channel | None = None


@dataclass(eq=False)
class Loaders:
    """All loaders of the process that trains: their channels, and the rows of their batches."""

    recorder: Recorder
    samples: Append
    starting: _Starting = field(default_factory=_Starting)
    channels: weakref.WeakKeyDictionary[Any, Channel] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """The state of each loader, by its iterator."""
    _depths_kept: int = 0

    def open(self, iterator: Any, workers: int, under_way: int) -> None:
        """Open a channel for a loader that is about to start its workers."""
        ring = Ring.create(workers, under_way)
        self.channels[iterator] = Channel(ring)
        self.starting.ring = ring

    def begin_epoch(self, iterator: Any) -> None:
        """Begin an epoch: the loader counts from 0 again, with its present workers."""
        channel = self.channels.get(iterator)
        if channel is not None:
            channel.epoch += 1
            channel.next_task = 0
            workers = iterator._workers  # noqa: SLF001  # loaders have no public name for them
            channel.ring.name_workers([process.pid for process in workers])

    def look(self, iterator: Any, tasks: Callable[[Channel], Iterable[int]]) -> Waiting | None:
        """Count the loader's `tasks` that are finished; `None` if nothing is recorded now."""
        channel = self.channels.get(iterator)
        if channel is None or not self.recorder.recording:
            return None
        now = now_ns()
        return Waiting(now, channel.ring.count_finished(channel.epoch, tasks(channel)), channel)

    def take(self, task: int, waiting: Waiting) -> None:
        """Record the batch of this number, which the loop has taken."""
        channel = waiting.channel
        times = channel.ring.read(channel.epoch, task) if channel is not None else None
        if times is not None:
            self.keep_queued(times, f"{LOADER_WORKER}{times.worker}", waiting)

    def keep_queued(self, times: BatchTimes, thread: str, waiting: Waiting) -> None:
        """Record a batch that waited until it was taken, which is now."""
        if not self.recorder.recording:
            return
        self.keep(times, thread)
        step = self.recorder.step_now
        queued = SpanRow(step, _DATA, "queue", 1, thread, times.end_ns, now_ns())
        self.recorder.keep_rows([queued])
        if step or self._depths_kept < MAX_DEPTHS_BEFORE_TRAINING:
            self._depths_kept += 1
            reading = SampleRow(None, "loader", QUEUE_DEPTH, waiting.time_ns, float(waiting.depth))
            self.samples(reading)

    def keep(self, times: BatchTimes, thread: str, fetcher: object = None) -> None:
        """Record the making of a batch."""
        if self.recorder.recording:
            self.recorder.keep_rows(make_rows(times, self.recorder.step_now, thread))


def make_rows(times: tuple[int, ...], step: int, thread: str) -> list[Row]:
    """Return the rows of a batch's making, from the fields of `BatchTimes`."""
    _, start_ns, collate_ns, end_ns, blocked_ns, processor_ns = times
    decode_ns = start_ns + blocked_ns
    made_ns = min(decode_ns + processor_ns, collate_ns or end_ns)
    rows: list[Row] = [
        SpanRow(step, _DATA, "read", 1, thread, start_ns, decode_ns),
        SpanRow(step, _DATA, "decode", 1, thread, decode_ns, made_ns),
    ]
    if collate_ns:
        rows.append(SpanRow(step, _DATA, "collate", 1, thread, collate_ns, end_ns))
    return rows
