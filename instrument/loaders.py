"""Times a loader's batches where they are made: in worker processes, in a thread, or in the loop itself.

A worker notes each batch's times in a ring of shared memory, under the batch's number; the process
that trains reads them when it takes the batch. The batch itself is not touched, and nobody waits:
where a slot holds another batch's times, nothing is recorded. The pieces become rows of `spans`, of
the phase `data`, at depth 1:

- `read`: the thread was blocked inside `dataset[index]`: wall time minus processor time minus the
  wait for a core. That is waiting for files, and for other threads or processes where it uses some;
- `decode`: it ran on a processor there: decoding and transforms;
- `collate`: `collate_fn`, by the wall clock;
- `queue`: from then until the process that trains has the batch: transport, pinning, waiting its turn.

Reading and decoding alternate within a batch. Their rows are laid end to end from its beginning, each
with its whole length; what remains until `collate` is the wait for a core. Where the kernel does not
tell that wait (`/proc/thread-self/schedstat`), it is part of `read`; so it is for short batches in the loop itself,
where asking would cost more than it tells.
"""

from __future__ import annotations

import array
import contextlib
import functools
import inspect
import mmap
import os
import pkgutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from profkit.clock import now_ns
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.recorder import Append, Recorder, Row
from profkit.vocab import Phase

DEPTH_METRIC = "queue_depth_batches"
"""How many finished batches waited when the loop asked for its next one."""

MOST_UNTRAINED = 10_000
"""Batches whose queue is kept before the first step ends: a process that only infers keeps no more."""

SHORT_NS = 2_000_000
"""A loop whose batches are made in less than this is not asked for its waits for a core, which costs 20 us a batch."""

SAME_MOMENT_NS, TRIES = 200_000, 5
"""Clocks that are read within so long tell of one moment."""

_DATA = Phase.DATA.value


# -- times of one batch --------------------------------------------------------------------------


class WaitClock:
    """How long the thread that makes it has waited for a core."""

    def __init__(self) -> None:
        self._schedstat = -1
        with contextlib.suppress(OSError):
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._schedstat).atexit = False

    def read(self) -> int:
        """Nanoseconds until now; always 0 where the kernel does not tell."""
        return int(os.pread(self._schedstat, 96, 0).split()[1]) if self._schedstat >= 0 else 0


def _read_together(clock: WaitClock) -> tuple[int, int, int]:
    """Wall time, processor time and the wait for a core, at one moment: where the thread lost its core in between, they are read again."""
    for _ in range(TRIES):
        before = now_ns()
        waited = clock.read()
        read = now_ns(), _processor_ns(), waited
        if now_ns() - before < SAME_MOMENT_NS:
            break
    return read


class BatchTimes(NamedTuple):
    """How one batch was made; `collate_ns` is 0 where nothing collated it."""

    worker: int
    start_ns: int
    collate_ns: int
    end_ns: int
    blocked_ns: int
    processor_ns: int


class Fetch:
    """A batch that is being made; its fetcher's `collate_fn` tells when collating begins."""

    __slots__ = ("_clock", "_collate", "_collated", "_processor_ns", "_start_ns", "_waited_ns", "fetcher", "task")

    def __init__(self, fetcher: Any, clock: WaitClock | None, task: int = 0) -> None:
        """Without a clock, waits for a core are not told apart."""
        self.fetcher = fetcher
        self.task = task
        self._clock = clock
        self._collated: tuple[int, int, int] | None = None
        self._collate = fetcher.collate_fn
        if self._collate:
            fetcher.collate_fn = self.collate
        self._start_ns, self._processor_ns, self._waited_ns = (now_ns(), _processor_ns(), 0) if clock is None else _read_together(clock)

    def collate(self, *args: Any, **kwargs: Any) -> Any:
        """The fetcher's `collate_fn`, timed."""
        try:
            self._collated = (now_ns(), _processor_ns(), 0) if self._clock is None else _read_together(self._clock)
        except Exception as failure:  # noqa: BLE001  # the border to the job
            report_failure("loader: collate", failure)
        return self._collate(*args, **kwargs)

    def drop(self) -> None:
        """Give the fetcher its own `collate_fn` back."""
        self.fetcher.collate_fn = self._collate

    def close(self, worker: int) -> BatchTimes:
        """What it took, until now. The fetcher has its own `collate_fn` back."""
        self.fetcher.collate_fn = self._collate
        start_ns, collated = self._start_ns, self._collated
        made_ns, processor_ns, waited_ns = collated or ((now_ns(), _processor_ns(), 0) if self._clock is None else _read_together(self._clock))
        took_ns = processor_ns - self._processor_ns
        blocked_ns = made_ns - start_ns - took_ns - (waited_ns - self._waited_ns)
        return _make_times((worker, start_ns, made_ns if collated else 0, now_ns() if collated else made_ns, max(0, blocked_ns), took_ns))


_make_times: Callable[[tuple[int, ...]], BatchTimes] = functools.partial(tuple.__new__, BatchTimes)
_processor_ns = time.thread_time_ns


class Meter(Protocol):
    """Who asks for the times of the batches that this process makes."""

    def begin(self, fetcher: Any) -> Fetch | None:
        """A batch is asked for; `None` where its times are not wanted."""

    def end(self, fetch: Fetch) -> None:
        """It is made."""

    def drop(self, fetch: Fetch) -> None:
        """An exception came instead; a loader's end is one too."""


def hook_fetch(patches: Patches, fetchers: Iterable[type], meter: Meter) -> None:
    """Time every batch that a fetcher of these classes makes in this process."""
    drop = guarded("loader: no batch", meter.drop, None)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                making = meter.begin(self)
            except Exception as failure:  # noqa: BLE001  # the border to the job
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
                meter.end(making)
            except Exception as failure:  # noqa: BLE001  # the border to the job
                report_failure("loader: end of a batch", failure)
            return batch

        return fetch

    for fetcher in fetchers:
        patches.replace(fetcher, "fetch", wrap)


# -- the channel between workers and the process that trains -------------------------------------

_MAGIC = 0x31676E69726B7270  # with the layout's version in its last digit
_HEADER = 3  # magic, number of workers, number of slots; then the workers' process ids, the stamps, the slots
_FIELDS = len(BatchTimes._fields)
_NAME = "profkit-loader"
_ROOM = 4  # slots for each batch that may be under way at once: one that is late does not find its slot taken


class Ring:
    """Times of batches in memory that processes share, in one slot a batch: its number modulo the ring's size.

    A slot's stamp is written last, and tells whose times it holds. The memory has no name in any
    folder and goes with the last process that has it; workers that are no forks find it among the
    open descriptors of the process that trains.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._words = memoryview(memory).cast("q")
        magic, self.workers, self.size = self._words[:_HEADER].tolist()
        if magic != _MAGIC or len(memory) < 8 * _count_words(self.workers, self.size):
            raise ValueError("not a ring of this version")
        self._stamps = _HEADER + self.workers
        self._slots = self._stamps + self.size

    @classmethod
    def create(cls, workers: int, under_way: int) -> Ring:
        """A ring for so many workers, with so many batches under way at once."""
        size = max(64, _ROOM * under_way)
        memory = _share_memory(8 * _count_words(workers, size))
        memory[: 8 * _HEADER] = array.array("q", (_MAGIC, workers, size)).tobytes()
        return cls(memory)

    def name_workers(self, processes: Sequence[int]) -> None:
        self._words[_HEADER : _HEADER + len(processes)] = array.array("q", processes)

    def is_for(self, worker: int, process: int) -> bool:
        return worker < self.workers and self._words[_HEADER + worker] == process

    def write(self, epoch: int, task: int, times: BatchTimes) -> None:
        place = task % self.size
        at = self._slots + place * _FIELDS
        self._words[at : at + _FIELDS] = array.array("q", times)
        self._words[self._stamps + place] = _stamp(epoch, task)

    def read(self, epoch: int, task: int) -> BatchTimes | None:
        """The batch's times; `None` where its worker has not written them, or another has since."""
        place = task % self.size
        if self._words[self._stamps + place] != _stamp(epoch, task):
            return None
        at = self._slots + place * _FIELDS
        return BatchTimes._make(self._words[at : at + _FIELDS].tolist())

    def count_finished(self, epoch: int, tasks: Iterable[int]) -> int:
        words, stamps, size, first = self._words, self._stamps, self.size, _stamp(epoch, 0)
        return sum(words[stamps + task % size] == first + task for task in tasks)


def _stamp(epoch: int, task: int) -> int:
    return (epoch << 40) + task + 1


def _count_words(workers: int, size: int) -> int:
    return _HEADER + workers + size * (1 + _FIELDS)


def _share_memory(size: int) -> mmap.mmap:
    """Zeroed memory that processes can share; where the system allows no descriptor for it, only forks can."""
    try:
        descriptor = os.memfd_create(_NAME)
    except OSError:
        return mmap.mmap(-1, size)
    try:
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def find_ring(worker: int) -> Ring | None:
    """The ring in which the process that started this one names it as its worker."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None or parent.pid is None:
        return None
    folder = f"/proc/{parent.pid}/fd"
    rings = (_open_ring(f"{folder}/{name}") for name in os.listdir(folder))
    return next((ring for ring in rings if ring is not None and ring.is_for(worker, os.getpid())), None)


def _open_ring(path: str) -> Ring | None:
    with contextlib.suppress(OSError, ValueError):
        if os.readlink(path).startswith(f"/memfd:{_NAME} "):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return Ring(mmap.mmap(descriptor, 0))
            finally:
                os.close(descriptor)
    return None


# -- in a worker ---------------------------------------------------------------------------------


class WorkerMeter:
    """Writes the times of one worker's batches into the ring of its loader.

    The number of a batch is seen where the worker takes its task. A fetch without a new one is
    not the worker's own: a loader inside the dataset, for example.
    """

    def __init__(self, worker: int, ring: Ring | None) -> None:
        self._worker = worker
        self._ring = ring
        self._sought = ring is not None
        self._clock = WaitClock()
        self._task: int | None = None
        self._epoch = 1

    def numbered(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """`get` of the queue of tasks, with each task seen."""
        note = guarded("loader: task", self._note, None)

        @functools.wraps(get)
        def get_and_note(*args: Any, **kwargs: Any) -> Any:
            task = get(*args, **kwargs)
            note(task)
            return task

        return get_and_note

    def _note(self, task: Any) -> None:
        if isinstance(task, tuple):
            self._task = task[0]
        elif type(task).__name__ == "_ResumeIteration":
            self._epoch += 1

    def begin(self, fetcher: Any) -> Fetch | None:
        task, self._task = self._task, None
        if task is None:
            return None
        if not self._sought:
            self._sought = True
            self._ring = find_ring(self._worker)
        return None if self._ring is None else Fetch(fetcher, self._clock, task)

    def end(self, fetch: Fetch) -> None:
        times = fetch.close(self._worker)
        if self._ring is not None:
            self._ring.write(self._epoch, fetch.task, times)

    def drop(self, fetch: Fetch) -> None:
        fetch.drop()


class WorkerLoop:
    """What a loader starts in each worker: the framework's own loop, once the process is set up for it.

    To a worker that is no fork it travels by the place where it stands, so that whatever stands
    there in the worker is run: this, or the framework's own where no hooks were installed.
    """

    def __init__(self, original: Callable[..., Any], place: str, set_up: Callable[[Mapping[str, Any]], None]) -> None:
        self._original = original
        self._place = place
        self._set_up = guarded("loader: worker", lambda *args, **kwargs: set_up(_arguments(original, *args, **kwargs)), None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._set_up(*args, **kwargs)
        return self._original(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return pkgutil.resolve_name, (self._place,)


def _arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Mapping[str, Any]:
    return inspect.signature(function).bind(*args, **kwargs).arguments


def hook_worker_loop(patches: Patches, module: Any, name: str, fetchers: Sequence[type], loaders: Loaders, queue: str) -> None:
    """Have workers time their batches; `queue` names the argument of the loop `module.name` that brings the tasks.

    A worker does not train: all other hooks are taken back there, and nothing is recorded.
    """
    take_back = guarded("loader: hooks in a worker", patches.undo, None)

    def set_up(arguments: Mapping[str, Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a worker that is a thread: this process trains
        loaders.recorder.stop()
        take_back()
        meter = WorkerMeter(arguments["worker_id"], loaders.starting.ring)
        arguments[queue].get = meter.numbered(arguments[queue].get)
        hook_fetch(Patches(), fetchers, meter)

    patches.replace(module, name, lambda original: WorkerLoop(original, f"{module.__name__}:{name}", set_up))


# -- in the process that trains ------------------------------------------------------------------


class Channel:
    """What the process that trains knows of one loader that has workers."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.epoch = 0
        self.arrived: deque[int] = deque()
        """The numbers of batches that have come from the workers and go to the loop in this order, where the loader keeps no such book."""
        self.latest = -1
        """The batch that came from the workers last."""
        self.next_task = 0
        """The first batch that the loop has not taken, where it takes them in order."""


class _Starting(threading.local):
    """The ring of the loader whose workers this thread starts now: what forks find."""

    ring: Ring | None = None


class Waiting(NamedTuple):
    """What the loop found when it asked for a batch."""

    time_ns: int
    depth: int
    channel: Channel | None = None


class Loaders:
    """All loaders of the process that trains: their channels, and the rows that their batches make."""

    def __init__(self, recorder: Recorder, samples: Append) -> None:
        self.recorder = recorder
        self.starting = _Starting()
        self._samples = samples
        self._untrained = 0
        self._channels: weakref.WeakKeyDictionary[Any, Channel] = weakref.WeakKeyDictionary()

    def open(self, iterator: Any, workers: int, under_way: int) -> None:
        """The loader is about to start its workers."""
        ring = Ring.create(workers, under_way)
        self._channels[iterator] = Channel(ring)
        self.starting.ring = ring

    def started(self) -> None:
        self.starting.ring = None

    def begin_epoch(self, iterator: Any, processes: Sequence[int]) -> None:
        """The loader counts its batches from 0 again; its workers are these."""
        channel = self._channels.get(iterator)
        if channel is not None:
            channel.epoch += 1
            channel.next_task = 0
            channel.ring.name_workers(processes)

    def forget(self, iterator: Any) -> None:
        """The loader has ended; where its iterator is kept alive, the ring is let go all the same."""
        self._channels.pop(iterator, None)

    def channel(self, iterator: Any) -> Channel | None:
        return self._channels.get(iterator)

    def look(self, iterator: Any, tasks: Callable[[Channel], Iterable[int]]) -> Waiting | None:
        """How many of the loader's `tasks` are finished; `None` where that is not to be recorded."""
        channel = self._channels.get(iterator)
        if channel is None or not self.recorder.recording:
            return None
        return Waiting(now_ns(), channel.ring.count_finished(channel.epoch, tasks(channel)), channel)

    def take(self, task: int, waiting: Waiting) -> None:
        """The loop has the batch of this number."""
        channel = waiting.channel
        times = channel.ring.read(channel.epoch, task) if channel is not None else None
        if times is not None:
            self.keep_queued(times, f"loader worker {times.worker}", waiting)

    def keep_queued(self, times: BatchTimes, thread: str, waiting: Waiting) -> None:
        """The rows of a batch that waited until it was taken, which is now."""
        if not self.recorder.recording:
            return
        self.keep(times, thread)
        self.recorder.keep_rows([(self.recorder.step_index, _DATA, "queue", 1, thread, times.end_ns, now_ns(), None, None, None, None)])
        if self.recorder.step_index or self._untrained < MOST_UNTRAINED:
            self._untrained += 1
            self._samples((None, "loader", DEPTH_METRIC, waiting.time_ns, float(waiting.depth)))

    def keep(self, times: BatchTimes, thread: str, fetcher: object = None) -> None:
        """The rows of a batch's making, written out: this is the hot path of loaders without workers."""
        recorder = self.recorder
        if not recorder.recording:
            return
        step = recorder.step_index
        _, start_ns, collate_ns, end_ns, blocked_ns, processor_ns = times
        decode_ns = start_ns + blocked_ns
        made_ns = min(decode_ns + processor_ns, collate_ns or end_ns)
        rows: list[Row] = [
            (step, _DATA, "read", 1, thread, start_ns, decode_ns, None, None, None, None),
            (step, _DATA, "decode", 1, thread, decode_ns, made_ns, None, None, None, None),
        ]
        if collate_ns:
            rows.append((step, _DATA, "collate", 1, thread, collate_ns, end_ns, None, None, None, None))
        recorder.keep_rows(rows)


class _InThread(threading.local):
    """What a thread that makes batches in the process that trains has of its own."""

    def __init__(self) -> None:
        self.own = _Making()


class _Making:
    """The batch that one thread makes."""

    __slots__ = ("clock", "fetching", "thread", "took_ns")

    def __init__(self) -> None:
        self.clock: WaitClock | None = None
        self.fetching = False
        self.thread = threading.current_thread().name
        self.took_ns = 0


class LoopMeter:
    """Times the batches of loaders without workers, which a thread of the process that trains makes itself."""

    def __init__(self, tell: Callable[[BatchTimes, str, Any], None], recorder: Recorder | None = None) -> None:
        """With a recorder, only batches of steps that are recorded are timed."""
        self._tell = tell
        self._recorder = recorder
        self._local = _InThread()

    def begin(self, fetcher: Any) -> Fetch | None:
        own, recorder = self._local.own, self._recorder
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
        self._tell(times, own.thread, fetch.fetcher)

    def drop(self, fetch: Fetch) -> None:
        self._local.own.fetching = False
        fetch.drop()

    def close(self) -> None:
        """Let go of the clocks of all threads."""
        self._local = _InThread()


def hook_loop_fetch(patches: Patches, fetchers: Iterable[type], meter: LoopMeter) -> None:
    """Time the batches that this process makes itself, until the patches are undone."""
    hook_fetch(patches, fetchers, meter)
    patches.on_undo(meter.close)
