"""The interface between profkit and a framework: `Framework` one way, `Seams` the other."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from profkit.attached import FRAMEWORKS
from profkit.clock import now_ns
from profkit.instrument.batches import count_samples
from profkit.instrument.device import Device
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, SampleRow
from profkit.instrument.tracking.tracker import Tracker
from profkit.instrument.windows.windows import KernelProfiler
from profkit.vocab import AUTOCAST, UNMEASURED


@dataclass(frozen=True)
class Place:
    """The rank of a process in its job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


class Books(Protocol):
    """Receives rows from the inside of loaders and reducers; `Seams` and `InnerBooks` do."""

    @property
    def recorder(self) -> Recorder: ...

    @property
    def collectives(self) -> Append: ...

    @property
    def samples(self) -> Append: ...


@dataclass(frozen=True)
class InnerBooks:
    """The books of a loop that reports its phases itself."""

    recorder: Recorder
    collectives: Append
    samples: Append


def note_unmeasured(books: Books, what: str) -> None:
    """Record that a part of the job is not measured, for the report."""
    books.samples(SampleRow(None, "profkit", f"{UNMEASURED}{what}", now_ns(), 1.0))


class Framework(Protocol):
    """One framework. A module of this folder holds one, under the name `FRAMEWORK`."""

    @property
    def name(self) -> str:
        """The name in `run.json` and on the command line: `torch` or `paddle`."""

    @property
    def module(self) -> str:
        """The module whose import installs the hooks."""

    def install(self, seams: Seams) -> Patches:
        """Install all hooks; undoing the returned patches removes them."""

    def install_inner(self, books: Books) -> tuple[Patches, Callable[[], None]]:
        """Hook only loaders and the gradient exchange, for a loop that reports its own phases.

        The returned function must be called at the end of each backward, inside of it.
        """

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        """Return the framework's own profiler, which gives way to the job's.

        On a device it captures operators only with `operators`.
        """

    def watch_profiler(self, patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        """Call `begins` when the framework's profiler starts.

        Returns a function that returns true while that profiler runs.
        """

    def device(self) -> Device | None:
        """Return the device that times phases, or `None` on a machine without one."""

    def device_name(self) -> str:
        """Return the device that this process trains on: `cpu`, `cuda:0`, ..."""

    def place(self) -> Place | None:
        """Return the rank that the framework knows, once its process group exists."""


def load_framework(name: str) -> Framework:
    """Load the framework of this name, which must be installed."""
    module = importlib.import_module(f"profkit.instrument.frameworks.{FRAMEWORKS[name]}")
    framework: Framework = module.FRAMEWORK
    return framework


class Seams:
    """The hooks' way to the tracker: its `Hooks`, none of which can raise into the job."""

    def __init__(
        self, tracker: Tracker, collectives: Append, samples: Append = lambda row: None
    ) -> None:
        self.tracker = tracker
        self.recorder = tracker.recorder
        self.collectives = collectives
        self.samples = samples
        notes = tracker.notes  # reports that may be buffered go here
        self.begin_data = guarded("begin_data", tracker.begin_data, None)
        self.begin_batch = guarded("begin_batch", notes.begin_batch, None)
        self.end_data = guarded("end_data", tracker.end_data, None)
        self.end_batch = guarded("end_batch", notes.end_batch, None)
        self.begin_copy = guarded("begin_copy", notes.begin_copy, None)
        self.begin_forward = guarded("begin_forward", notes.begin_forward, None)
        self.begin_backward = guarded("begin_backward", notes.begin_backward, None)
        self.begin_optimizer = guarded("begin_optimizer", notes.begin_optimizer, None)
        self.name_skipped = guarded("name_skipped", notes.name_skipped, None)
        self.begin_checkpoint = guarded("begin_checkpoint", tracker.begin_checkpoint, None)
        self.end = guarded("end", notes.end, None)
        self.begin_program = guarded("begin_program", tracker.begin_program, False)
        self.end_program = guarded("end_program", tracker.end_program, None)
        self.note_scale = guarded("note_scale", tracker.note_scale, None)
        self.autocast: bool | None = None
        self.note_autocast = guarded("note_autocast", self._note_autocast, None)
        self.count_samples = guarded("count_samples", count_samples, 0)

    def _note_autocast(self, enabled: bool) -> None:
        """Note a change: models are called in mixed precision from now on, or are not."""
        self.autocast = enabled
        self.samples(SampleRow(None, "framework", AUTOCAST, now_ns(), float(enabled)))
