"""What profkit must know of a framework, and what a framework may call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from profkit.attached import FRAMEWORKS
from profkit.clock import now_ns
from profkit.instrument.batches import count_samples
from profkit.instrument.device import Device
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, Followed
from profkit.instrument.tracking.tracker import Tracker
from profkit.instrument.windows.windows import KernelProfiler
from profkit.vocab import UNMEASURED

AUTOCAST = "autocast_ratio"
"""1 from the moment on at which models are called in mixed precision, 0 from when they are not."""


@dataclass(frozen=True)
class Place:
    """Where a process stands in its job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


class Books(Protocol):
    """Where the rows go that are made inside loaders and reducers; `Seams` is one, `InnerBooks` another."""

    @property
    def recorder(self) -> Recorder: ...

    @property
    def collectives(self) -> Append: ...

    @property
    def samples(self) -> Append: ...


@dataclass(frozen=True)
class InnerBooks:
    """The books of a loop that tells its phases itself."""

    recorder: Recorder
    collectives: Append
    samples: Append


def note_unmeasured(books: Books, what: str) -> None:
    """Record that something of the job is not measured; the report says so."""
    books.samples((None, "profkit", f"{UNMEASURED}{what}", now_ns(), 1.0))


class Framework(Protocol):
    """One framework. A module of this folder holds one, under the name `FRAMEWORK`."""

    @property
    def name(self) -> str:
        """`torch` or `paddle`: what `run.json` and the command line call it."""

    @property
    def module(self) -> str:
        """The module whose import arms the hooks."""

    def install(self, seams: Seams) -> Patches:
        """Hook every seam; the patches that are returned take all of it back."""

    def install_inner(self, books: Books) -> tuple[Patches, Callable[[], None]]:
        """Hook only the inside of loaders and of the gradient exchange, for a loop that tells its phases itself.

        What is returned second is to be called at the end of each backward, inside of it.
        """

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        """The framework's own profiler, which gives way to the job's; on a device it captures operators only where they are asked for."""

    def watch_profiler(self, patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        """Call `begins` when the framework's profiler starts; what is returned tells whether it runs."""

    def device(self) -> Device | None:
        """The device that times phases; `None` on a machine without one."""

    def device_name(self) -> str:
        """`cpu`, `cuda:0`, ...: the device that this process trains on."""

    def place(self) -> Place | None:
        """The rank that the framework itself knows, once its process group is there; else `None`."""


def load_framework(name: str) -> Framework:
    """The framework of this name; it must be installed."""
    framework: Framework = importlib.import_module(
        f"profkit.instrument.frameworks.{FRAMEWORKS[name]}"
    ).FRAMEWORK
    return framework


_OF_TRACKER = (
    "begin_data",
    "begin_batch",
    "begin_copy",
    "begin_forward",
    "begin_backward",
    "begin_program",
    "end_program",
    "begin_optimizer",
    "begin_checkpoint",
    "end",
    "end_data",
    "end_batch",
    "name_skipped",
    "note_scale",
)


class Seams:
    """What hooks call: the tracker's methods, none of which can raise into the job."""

    begin_data: Callable[..., Followed | int | None]
    begin_batch: Callable[[], Followed | int | None]
    begin_copy: Callable[[], Followed | int | None]
    begin_forward: Callable[..., Followed | int | None]
    begin_backward: Callable[[str, float | None], Followed | int | None]
    begin_program: Callable[[str], bool | None]
    end_program: Callable[..., None]
    begin_optimizer: Callable[[int], Followed | int | None]
    begin_checkpoint: Callable[[], Followed | int | None]
    end: Callable[..., None]
    end_data: Callable[..., None]
    end_batch: Callable[[Followed | int | None, Any], None]
    name_skipped: Callable[[Followed | int | None], None]
    note_scale: Callable[[float | None], None]

    def __init__(
        self, tracker: Tracker, collectives: Append, samples: Append = lambda row: None
    ) -> None:
        self.tracker = tracker
        self.recorder = tracker.recorder
        self.collectives = collectives
        self.samples = samples
        for name in _OF_TRACKER:
            setattr(
                self,
                name,
                guarded(name, getattr(tracker.notes, name, None) or getattr(tracker, name), None),
            )
        self.autocast: bool | None = None
        self.note_autocast: Callable[[bool], None] = guarded(
            "note_autocast", self._note_autocast, None
        )
        self.count_samples: Callable[[Any], int] = guarded("count_samples", count_samples, 0)

    def _note_autocast(self, enabled: bool) -> None:
        """Models are called in mixed precision from now on, or are not: to be called where that changes."""
        self.autocast = enabled
        self.samples((None, "framework", AUTOCAST, now_ns(), float(enabled)))
