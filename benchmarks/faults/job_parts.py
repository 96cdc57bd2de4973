"""Options, clock and mishaps that the jobs share.

A job takes its options from `FAULT_OPTIONS`, a variable that no trace records. The commands of a
fault and its healthy twin are equal, so the fault can only be found from the job's behaviour. The
loops and data sets of the jobs differ on purpose: rules that fit one loop by chance should fail
on another.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

OPTIONS_VARIABLE = "FAULT_OPTIONS"
OWN_FOLDER_VARIABLE = "FAULT_OWN"
BEFORE_STEP = "before_step"
"""One of the places at which a rank can be late; the jobs name the others."""

MODULE_LINES = 1_500
"""Size of a module that is imported in the loop; compiling it takes some 20 ms."""

BUSY_S, REST_S = 0.03, 0.02
"""A thread that never rests would make a step thirty times as long."""


@dataclass(frozen=True)
class Options:
    """The options of a job. The defaults are healthy; a fault is a changed option."""

    seed: int = 0
    steps: int = 120
    batch: int = 8
    accumulate: int = 1
    width: int = 64
    layers: int = 2
    threads: int = 1
    optimizer: str = "fused"

    # input
    workers: int = 1
    own_thread: bool = False
    """If true, a thread of the job makes the batches, and no data loader."""
    parsing: int = 1
    """Number of passes of Python code over a sample."""
    storage_ms: float = 0.0
    """The file system's time for a sample."""
    collating: int = 0
    """Number of passes of Python code over a batch."""
    copies: int = 0
    """Number of conversions of a batch in the training thread."""

    # the step
    late_rank: int = -1
    late_place: str = ""
    late_ms: float = 0.0
    float64: bool = False
    anomaly: bool = False
    recompute: bool = False
    mining: bool = False
    """If true, Python code looks for the hardest triplets, with an operator for each."""
    pause_ms: float = 0.0
    """A wait between the backward pass and the optimizer."""
    clip: str = "library"
    reads: int = 0
    """Number of single values that the job reads after the backward pass."""
    average: bool = False
    """If true, Python code keeps a moving average of all parameters."""

    # the exchange
    bucket_mb: float = 25.0
    delay_ms: float = 0.0
    no_sync: bool = True

    # next to the step
    log_mb: float = 0.0
    """Size of a record that is on the disk before the next step begins."""
    garbage_every: int = 0
    objects: int = 300_000
    history: int = 0
    """By how many numbers a list grows per step. Each step sorts it."""
    busy_thread: bool = False
    """If true, a thread of pure Python code computes most of the time."""
    import_every: int = 0
    evaluate_every: int = 0
    checkpoint_every: int = 0
    checkpoint_mb: int = 40


def read_options() -> Options:
    """Return the options of this process's job."""
    known = {field.name for field in fields(Options)}
    given = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    unknown = sorted(set(given) - known)
    if unknown:
        raise SystemExit(f"{OPTIONS_VARIABLE}: no such option: {', '.join(unknown)}")
    return Options(**given)


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

    def end_step(self) -> None:
        now = time.perf_counter()
        self._steps.append({**self._now, "step": 1e3 * (now - self._began)})
        self._began, self._now = now, {}

    def write(self, rank: int) -> None:
        folder = os.environ.get(OWN_FOLDER_VARIABLE)
        if folder:
            Path(folder, f"own{rank}.json").write_text(json.dumps(self._steps))


class Mishaps:
    """The injected faults that need no framework."""

    def __init__(self, options: Options, clock: OwnClock, rank: int) -> None:
        self._options, self._clock, self._rank = options, clock, rank
        self._heap = [[number] for number in range(options.objects * bool(options.garbage_every))]
        self._history: list[float] = []
        self._folder = os.environ.get(OWN_FOLDER_VARIABLE, tempfile.gettempdir())
        if options.busy_thread:
            threading.Thread(target=_count_for_ever, daemon=True).start()

    def late(self, place: str) -> None:
        """Sleep if this rank is the one that is late here."""
        options = self._options
        if options.late_rank == self._rank and options.late_place == place:
            self._clock.plant(options.late_ms)

    def before_step(self) -> None:
        """Do what the job does between the backward pass and the optimizer."""
        self._clock.plant(self._options.pause_ms)
        self.late(BEFORE_STEP)

    def after_step(self, step: int, loss: float) -> None:
        """Do what the job does between two steps."""
        options = self._options
        with self._clock.time("planted"):
            if options.garbage_every and step % options.garbage_every == 0:
                gc.collect()
            if options.log_mb:
                self._log(step, loss)
            if options.history:
                self._history.extend(loss + number for number in range(options.history))
                self._history.sort(key=_distance)
            if options.import_every and step % options.import_every == 0:
                self._import(step)

    def _log(self, step: int, loss: float) -> None:
        record = f"step {step} loss {loss}\n".encode().ljust(int(self._options.log_mb * 1e6))
        file = os.open(Path(self._folder, f"log{self._rank}.txt"), os.O_CREAT | os.O_WRONLY)
        try:
            os.write(file, record)
            os.fsync(file)
        finally:
            os.close(file)

    def _import(self, step: int) -> None:
        """Import a module that no earlier step has imported."""
        path = Path(self._folder, f"plugin_{self._rank}_{step}.py")
        lines = [f"def rule_{number}(x): return x * {number} + 1" for number in range(MODULE_LINES)]
        path.write_text("\n".join(lines))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(path.stem)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        path.unlink()


def is_due(step: int, every: int) -> bool:
    """Return true in each step that is the last of so many."""
    return bool(every) and step % every == every - 1


def parse(values: list[int], passes: int) -> list[int]:
    """Return the values after passes of Python code over them, as a tokenizer makes them."""
    found = values
    for _ in range(passes):
        found = [(value * 31 + 7) % 997 for value in found]
    return found


def wait_for_storage(options: Options) -> None:
    if options.storage_ms:
        time.sleep(options.storage_ms / 1e3)


def _distance(value: float) -> float:
    return abs(value - 0.5)


def _count_for_ever() -> None:
    """Count for a while and rest for a while, as a thread that sums up figures does."""
    number = 0
    while True:
        until = time.perf_counter() + BUSY_S
        while time.perf_counter() < until:
            number = (number + 1) % 1_000_003
        time.sleep(REST_S)
