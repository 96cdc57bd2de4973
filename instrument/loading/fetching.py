"""Time the reading, decoding and collating of a batch, in the thread that makes it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from profkit.clock import now_ns
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.recorder import PerThread, Recorder
from profkit.instrument.rows import BatchTimes, Meter
from profkit.instrument.tracking.notes import Notes

SHORT_NS = 2_000_000
"""The wait for a core is not read for shorter batches: reading it costs 20 us per batch."""

SAME_MOMENT_NS, TRIES = 200_000, 5
"""Clocks that are read within this time show one moment; otherwise they are read again."""


class WaitClock:
    """The time that the thread which creates the clock has waited for a core."""

    def __init__(self) -> None:
        self._schedstat = -1
        with contextlib.suppress(OSError):
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._schedstat).atexit = False

    def read(self) -> int:
        """Return the nanoseconds until now; always 0 if the kernel does not count them."""
        return int(os.pread(self._schedstat, 96, 0).split()[1]) if self._schedstat >= 0 else 0


def _read_together(clock: WaitClock) -> tuple[int, int, int]:
    """Return wall time, processor time and the wait for a core, all of one moment.

    If the thread lost its core in between, they are read again.
    """
    for _ in range(TRIES):
        before = now_ns()
        waited = clock.read()
        read = now_ns(), _processor_ns(), waited
        if now_ns() - before < SAME_MOMENT_NS:
            break
    return read


class Fetch:
    """A batch that is being made; collating begins when its fetcher calls `collate_fn`.

    The clocks are read in three places, each without a call of ours in between.
    """

    __slots__ = (
        "_clock",
        "_collate",
        "_collated",
        "_processor_ns",
        "_start_ns",
        "_waited_ns",
        "fetcher",
        "task",
    )

    def __init__(self, fetcher: Any, clock: WaitClock | None, task: int = 0) -> None:
        """Begin now. Without a clock, waits for a core count as blocked."""
        self.fetcher = fetcher
        self.task = task
        self._clock = clock
        self._collated: tuple[int, int, int] | None = None
        self._collate = fetcher.collate_fn
        self._start_ns, self._processor_ns, self._waited_ns = (
            (now_ns(), _processor_ns(), 0) if clock is None else _read_together(clock)
        )
        if self._collate:  # last: a fetch that could not be begun has changed nothing
            fetcher.collate_fn = self.collate

    def collate(self, *args: Any, **kwargs: Any) -> Any:
        """Note the time, and call the fetcher's own `collate_fn`."""
        try:
            self._collated = (
                (now_ns(), _processor_ns(), 0)
                if self._clock is None
                else _read_together(self._clock)
            )
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("loader: collate", failure)
        return self._collate(*args, **kwargs)

    def drop(self) -> None:
        """Give the fetcher its own `collate_fn` back."""
        self.fetcher.collate_fn = self._collate

    def close(self, worker: int) -> BatchTimes:
        """Return the times until now, and give the fetcher its own `collate_fn` back."""
        self.fetcher.collate_fn = self._collate
        start_ns, collated = self._start_ns, self._collated
        made_ns, processor_ns, waited_ns = collated or (
            (now_ns(), _processor_ns(), 0) if self._clock is None else _read_together(self._clock)
        )
        took_ns = processor_ns - self._processor_ns
        blocked_ns = made_ns - start_ns - took_ns - (waited_ns - self._waited_ns)
        collate_ns, end_ns = (made_ns, now_ns()) if collated else (0, made_ns)
        return _make_times((worker, start_ns, collate_ns, end_ns, max(0, blocked_ns), took_ns))


_make_times: Callable[[tuple[int, ...]], BatchTimes] = functools.partial(tuple.__new__, BatchTimes)
_processor_ns = time.thread_time_ns


def hook_fetch(patches: Patches, fetcher: Any, meter: Meter) -> None:
    """Time every batch that a fetcher of this class makes in this process."""
    drop = guarded("loader: no batch", meter.drop, None)
    begin, end = meter.begin, meter.end
    original: Callable[..., Any] = fetcher.fetch

    @functools.wraps(original)
    def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            making = begin(self)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("loader: begin of a batch", failure)
            making = None
        if making is None:
            return original(self, *args, **kwargs)
        try:
            batch = original(self, *args, **kwargs)
        except BaseException:
            drop(making)
            raise
        try:
            end(making)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("loader: end of a batch", failure)
        return batch

    patches.replace(fetcher, "fetch", lambda _: fetch)


@dataclass(slots=True, eq=False)
class _Making:
    """The batch that one thread makes."""

    thread: str = field(default_factory=lambda: threading.current_thread().name)
    clock: WaitClock | None = None
    fetching: bool = False
    took_ns: int = 0


@dataclass(eq=False)
class LoopMeter:
    """Times the batches of loaders without workers, which a thread of this process makes.

    Reports each batch; with a recorder, only those of recorded steps.
    """

    report: Callable[[BatchTimes, str, Any], None]
    recorder: Recorder | None = None
    _local: PerThread[_Making] = field(default_factory=lambda: PerThread(_Making))

    def begin(self, fetcher: Any) -> Fetch | None:
        own, recorder = self._local.own, self.recorder
        if own.fetching or (recorder is not None and not recorder.recording):
            return None
        if own.took_ns < SHORT_NS:
            clock = None
        else:
            clock = own.clock = own.clock or WaitClock()
        fetch = Fetch(fetcher, clock)
        own.fetching = True
        return fetch

    def end(self, fetch: Fetch) -> None:
        own = self._local.own
        own.fetching = False
        times = fetch.close(0)
        own.took_ns = times.end_ns - times.start_ns
        self.report(times, own.thread, fetch.fetcher)

    def drop(self, fetch: Fetch) -> None:
        self._local.own.fetching = False
        fetch.drop()

    def close(self) -> None:
        """Release the clocks of all threads."""
        self._local = PerThread(_Making)


def hook_loop_fetch(
    patches: Patches, fetchers: Iterable[type], meter: LoopMeter, notes: Notes | None = None
) -> None:
    """Time the batches that this process makes itself; with a loop's notes, through these."""
    patches.on_undo(meter.close)
    used = Meter(meter.begin, meter.end, meter.drop)
    if notes is not None:
        notes.measure_with(used)
        patches.on_undo(functools.partial(notes.measure_with, None))
        used = Meter(notes.begin_fetch, notes.end_fetch, notes.drop_fetch)
    for fetcher in fetchers:
        hook_fetch(patches, fetcher, used)
