"""Options, images and clock that the faulty jobs of both frameworks share.

A job takes its options from `FAULT_OPTIONS`, a variable that no trace records. The commands of a
fault and its healthy twin are equal, so the fault can only be found from the job's behaviour.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

OPTIONS_VARIABLE = "FAULT_OPTIONS"
OWN_FOLDER_VARIABLE = "FAULT_OWN"
CLASSES = 10
PICTURES = 64

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True)
class Options:
    """The options of a job. The defaults are healthy; a fault is a changed option."""

    seed: int = 0
    steps: int = 240
    epoch_steps: int = 1_000
    batch: int = 8
    image: int = 40
    width: int = 24
    threads: int = 1
    placed: bool = True
    """If true, ranks and workers have their own cores. Otherwise scheduling makes twins differ."""
    optimizer: str = "fused"
    tensors: int = 0
    """Small extra parameters, which an optimizer that is not fused goes through one by one."""

    # input
    workers: int = 1
    persistent: bool = True
    read_ms: float = 0.0
    """The file system's time for each image."""
    cached: bool = False
    """If true, images that were read once are read again without waiting."""
    blurs: int = 0
    """Filters that a transform applies to each picture."""
    polling: float = 0.0
    """The share of a processor that each worker uses in addition to its work."""
    broken_ms: float = 0.0
    """Cost of failed attempts to read a truncated image: one in twenty, which is then dropped."""

    # the step
    late_rank: int = -1
    late_phase: str = ""
    late_ms: float = 0.0
    slices: int = 1
    """Number of operators that do the work of one: slices of the model's middle, or repeats."""
    round_trips: int = 0
    """Copies of the activations into another layout and back."""
    autocast: bool = False
    scaler: bool = False
    overflow_every: int = 0
    drift_ms: float = 0.0
    """By how much each step is longer than the one before."""
    item_syncs: int = 0
    """Number of device values that a step reads, which is a fault only on a GPU."""
    pin: bool = True

    # the exchange
    bucket_mb: float = 25.0
    first_bucket_mb: float = 1.0
    link_mb_s: float = 0.0
    """Bandwidth of a link that all buckets queue for; 0 is the machine's own loopback."""
    delay_ms: float = 0.0
    """Time that a slow link adds to each all-reduce."""
    accumulate: int = 1
    no_sync: bool = True

    # options outside the step
    garbage_every: int = 0
    objects: int = 200_000
    checkpoint_every: int = 0
    checkpoint_mb: int = 48
    evaluate_every: int = 0
    evaluate_batches: int = 4

    @classmethod
    def from_environment(cls) -> Options:
        return read_options(cls)


def read_options(kind: type[OptionsT]) -> OptionsT:
    """Return the options of this process's job."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # dataclasses
    given = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    unknown = sorted(set(given) - known)
    if unknown:
        raise SystemExit(f"{OPTIONS_VARIABLE}: no such option: {', '.join(unknown)}")
    return kind(**given)


class OwnClock:
    """The job's own view: each step's wall time, its parts, and the injected time, in ms."""

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextlib.contextmanager
    def time(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.add(part, 1e3 * (time.perf_counter() - start))

    def add(self, part: str, ms: float) -> None:
        self._now[part] = self._now.get(part, 0.0) + ms

    def plant(self, ms: float) -> None:
        """Sleep, and record how long it really took."""
        if ms > 0:
            with self.time("planted"):
                time.sleep(ms / 1e3)

    def end_step(self, *, starts_epoch: bool) -> None:
        now = time.perf_counter()
        self._steps.append(
            {**self._now, "step": 1e3 * (now - self._began), "starts_epoch": float(starts_epoch)}
        )
        self._began, self._now = now, {}

    def write(self, rank: int) -> None:
        folder = os.environ.get(OWN_FOLDER_VARIABLE)
        if folder:
            Path(folder, f"own{rank}.json").write_text(json.dumps(self._steps))


class Pictures:
    """JPEG files in memory, read and decoded as slowly as the options say."""

    def __init__(self, options: Options, before_batch: Callable[[], None] = lambda: None) -> None:
        self.options = options
        self._before_batch = before_batch
        rng = np.random.default_rng(options.seed)
        self._files = [_jpeg(rng, options.image) for _ in range(PICTURES)]
        self._known: set[int] = set()

    def __len__(self) -> int:
        return self.options.epoch_steps * self.options.batch

    def load(self, index: int) -> tuple[npt.NDArray[np.float32], int] | None:
        """Return an image and its class, or `None` for a truncated image."""
        if index % self.options.batch == 0:
            self._before_batch()
        _poll_beside(self.options.polling)
        self._read(index)
        if self.options.broken_ms and index % 20 == 0:
            time.sleep(self.options.broken_ms / 1e3)
            return None
        picture = Image.open(io.BytesIO(self._files[index % PICTURES])).convert("RGB")
        for _ in range(self.options.blurs):
            picture = picture.filter(ImageFilter.GaussianBlur(2))
        return np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 255, index % CLASSES

    def _read(self, index: int) -> None:
        """Read an image. With a cache, the part of the data that is read again is cached."""
        if self.options.read_ms and not (self.options.cached and index in self._known):
            time.sleep(self.options.read_ms / 1e3)
        self._known.add(index)


def _jpeg(rng: np.random.Generator, size: int) -> bytes:
    target = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(
        target, "JPEG", quality=90
    )
    return target.getvalue()


def _burn(ms: float) -> None:
    """Decode repeatedly for this much CPU time."""
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


_pollers: set[int] = set()


def _poll_beside(share: float) -> None:
    """Start one thread per process that polls for work, as some libraries do."""
    if share <= 0 or os.getpid() in _pollers:
        return
    _pollers.add(os.getpid())

    def poll() -> None:
        while True:
            _burn(10 * share)
            time.sleep(0.010 * (1 - share))

    threading.Thread(target=poll, daemon=True).start()


PLACED_AT = 3
"""The step at which a rank goes to its core; what was started before is not bound to it."""


@contextlib.contextmanager
def own_core(rank: int, *, placed: bool) -> Iterator[Callable[[int], None]]:
    """Return a function that binds the training thread to a core of its own, per step.

    At the end the thread may use any core again.
    """
    cores = sorted(os.sched_getaffinity(0))

    def at_step(step: int) -> None:
        if placed and step == PLACED_AT:
            os.sched_setaffinity(0, {cores[rank % len(cores)]})

    yield at_step
    os.sched_setaffinity(0, cores)


def place_worker(rank: int, worker: int) -> None:
    """Bind a loader worker to a core on which its rank does not train, if there is one."""
    cores = range(os.cpu_count() or 1)
    os.sched_setaffinity(0, {cores[(rank + 1) % len(cores)]})


class Garbage:
    """A heap of many small objects, which collections of the oldest generation traverse."""

    def __init__(self, options: Options) -> None:
        self._every = options.garbage_every
        self._heap = [[number] for number in range(options.objects)] if self._every else []

    def after_step(self, step: int, clock: OwnClock) -> None:
        if self._every and step % self._every == 0:
            with clock.time("planted"):
                gc.collect()
