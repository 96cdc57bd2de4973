"""The interface between profkit and a framework: `Framework` one way, `Seams` the other."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from profkit.attached import FRAMEWORKS
from profkit.clock import now_ns
from profkit.instrument.batches import count_samples
from profkit.instrument.device import Device
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.identity import Facts, describe_job
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, EventRow, SampleRow
from profkit.instrument.tracking.tracker import Tracker
from profkit.instrument.windows.windows import KernelProfiler, ReadRows
from profkit.rank import Rank, local_rank_of
from profkit.vocab import AUTOCAST, EventKind

_FOLDER = "profkit.instrument.frameworks"


@dataclass
class Books:
    """Receives rows from the inside of loaders and reducers."""

    recorder: Recorder
    collectives: Append
    samples: Append
    events: Append


_FOREIGN = threading._DummyThread  # noqa: SLF001  # a thread that Python did not start


def note_unmeasured(books: Books, what: str) -> None:
    """Record that a part of the job is not measured, for the report."""
    books.events(EventRow(None, now_ns(), EventKind.UNMEASURED, what))


class DumpFlight(Protocol):
    """Returns a framework's own lists of collectives as JSON, or only the numbers of the last."""

    def __call__(self, *, with_calls: bool = True) -> tuple[str, ...]: ...


def no_dumps(*, with_calls: bool = True) -> tuple[str, ...]:
    """Return nothing: the framework keeps no list."""
    return ()


@dataclass(frozen=True)
class Framework:
    """One framework. A module of this folder holds one, under the name `FRAMEWORK`."""

    name: str
    """The module whose import installs the hooks: `torch` or `paddle`, as in `run.json`."""

    install: Callable[[Seams], Patches]
    """Install all hooks; undoing the returned patches removes them."""

    device: Callable[[], Device | None]
    """Return the device that times phases, or `None` on a machine without one."""

    device_name: Callable[[], str]
    """Return the device that this process trains on: `cpu`, `cuda:0`, ..."""

    later: Mapping[str, Callable[[Patches, Books], None]] = field(default_factory=dict)
    """Hooks for modules that the job imports later, if at all; we never import them."""

    dump_flight: DumpFlight = no_dumps
    """Return the framework's own lists of collectives, if it has any."""

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        """Return the framework's own profiler, which gives way to the job's.

        On a device torch captures operators only with `operators`. Paddle always does.
        """
        windows = importlib.import_module(f"{_FOLDER}.{FRAMEWORKS[self.name]}.windows")
        profiler = windows.Kernels(operators=operators)
        windows.watch_profiler(patches, profiler.give_way)
        made: KernelProfiler = profiler
        return made

    def operation_counter(self, events: Append) -> tuple[KernelProfiler, ReadRows] | None:
        """Return what counts operations, and what reads its file; `None` if nothing does."""
        if self.name != "torch":
            return None
        arithmetic = importlib.import_module(f"{_FOLDER}.{FRAMEWORKS[self.name]}.arithmetic")
        counter = arithmetic.Arithmetic(events)
        return counter, counter.read_rows

    def memory_history(self, run: Path, rank: Callable[[], int], *, from_start: bool) -> Any:
        """Return what writes snapshots of the device's memory; `None` if nothing does."""
        if self.name != "torch":
            return None
        memory = importlib.import_module(f"{_FOLDER}.{FRAMEWORKS[self.name]}.memory")
        return memory.MemoryHistory(run, rank, from_start=from_start)

    def watch_profiler(self, patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        """Call `begins` when the framework's profiler starts.

        Returns a function that returns true while that profiler runs.
        """
        windows = importlib.import_module(f"{_FOLDER}.{FRAMEWORKS[self.name]}.windows")
        windows.watch_profiler(patches, begins)
        is_profiling: Callable[[], bool] = windows.is_profiling
        return is_profiling

    def describe_thread(self) -> Facts:
        """Return facts of a job that belong to the calling thread, which trains."""
        facts: Facts = self._identity().describe_thread()
        return facts

    def describe_job(self, tracker: Tracker) -> Facts:
        """Return what is known of a job's models, optimizers, loader and batches."""
        for models in tracker.models:
            if models.framework == self.name:
                return describe_job(self._identity().describe, tracker.seen, models)
        return {}

    def _identity(self) -> Any:
        return importlib.import_module(f"{_FOLDER}.{FRAMEWORKS[self.name]}.identity")

    def rank(self) -> Rank | None:
        """Return the rank that the framework knows, once its process group exists."""
        distributed = importlib.import_module(f"{self.name}.distributed")
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        return Rank(distributed.get_rank(), distributed.get_world_size(), local_rank_of() or 0)


def load_framework(name: str) -> Framework:
    """Load the framework of this name, which must be installed."""
    framework: Framework = importlib.import_module(f"{_FOLDER}.{FRAMEWORKS[name]}").FRAMEWORK
    return framework


class Seams(Books):
    """The hooks' way to the tracker: its `Hooks`, none of which can raise into the job."""

    def __init__(
        self,
        tracker: Tracker,
        collectives: Append,
        samples: Append = lambda row: None,
        events: Append = lambda row: None,
    ) -> None:
        super().__init__(tracker.recorder, collectives, samples, events)
        self.tracker = tracker
        notes = tracker.notes  # reports that may be buffered go here
        self.begin_data = guarded("begin_data", tracker.begin_data, None)
        self.end_data = guarded("end_data", tracker.end_data, None)
        self.begin_forward = guarded("begin_forward", notes.begin_forward, None)
        self.begin_backward = guarded("begin_backward", notes.begin_backward, None)
        self.begin_optimizer = guarded("begin_optimizer", notes.begin_optimizer, None)
        self.begin_reset = guarded("begin_reset", notes.begin_reset, None)
        self.name_skipped = guarded("name_skipped", notes.name_skipped, None)
        self.pause = guarded("pause", tracker.pause, None)
        self.resume = guarded("resume", tracker.resume, None)
        self.begin_checkpoint = guarded("begin_checkpoint", tracker.begin_checkpoint, None)
        self.begin_evaluation = guarded("begin_evaluation", tracker.begin_evaluation, None)
        self.end = guarded("end", notes.end, None)
        self.follow_loader = guarded("loader", tracker.follow_loader, None)
        self.forget_loader = guarded("loader", tracker.forget_loader, None)
        self.begin_program = guarded("begin_program", tracker.begin_program, False)
        self.end_program = guarded("end_program", tracker.end_program, None)
        self.note_scale = guarded("note_scale", tracker.note_scale, None)
        self.autocast: bool | None = None
        self.note_autocast = guarded("note_autocast", self._note_autocast, None)
        self.count_samples = guarded("count_samples", count_samples, 0)

    def _note_autocast(self, enabled: bool, dtype: Callable[[], str]) -> None:
        """Note a change: models are called in mixed precision from now on, or are not."""
        self.autocast = enabled
        if enabled:
            self.tracker.seen.precision = dtype()
        self.samples(SampleRow(None, "framework", AUTOCAST, now_ns(), float(enabled)))


def other_trainer(seams: Seams) -> Callable[[], None]:
    """Return a function that notes once if a thread updates weights that is not followed.

    The framework's own threads do not count: they run optimizers that are part of a backward.
    """
    looked_at: set[int] = set()
    noted: list[bool] = []

    def note() -> None:
        own = threading.get_ident()
        if noted or own in looked_at or not seams.tracker.trains_elsewhere():
            return
        looked_at.add(own)
        threads = [each for each in threading.enumerate() if each.ident == own]
        if threads and type(threads[0]) is not _FOREIGN:
            noted.append(True)
            note_unmeasured(seams, "updates of weights by other threads: one thread is followed")

    return guarded("another thread that trains", note, None)
