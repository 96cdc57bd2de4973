"""Records the job that this process is: any training loop, hooked through its framework.

Files are opened when the process first trains, not before: launchers, loader workers and helpers
import frameworks too, and leave no trace.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.attached import RUN_VARIABLE, TRAINED, note
from profkit.clock import now_ns, read_anchor, wall_ns
from profkit.errors import ProfkitError
from profkit.instrument.blocks import off_blocks
from profkit.instrument.device import DeviceTimer
from profkit.instrument.frameworks.base import Place, Seams
from profkit.instrument.garbage import check_collection, collection_paused
from profkit.instrument.guard import FAILURES, Patches, guarded
from profkit.instrument.ranges import nvtx_ranges
from profkit.instrument.recorder import Recorder, measure_span_cost
from profkit.instrument.rows import COLUMNS, Append, Row
from profkit.instrument.tracking.tracker import Tracker
from profkit.run.collecting import Choice, Collecting
from profkit.vocab import OPENING_CPU, RunState

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Framework
    from profkit.trace import RankWriter

log = logging.getLogger("profkit")

TABLES = ("steps", "spans", "kernels", "collectives", "samples")
MOST_ROWS_BEFORE_FILES = 200_000


class LateSink:
    """Takes rows from the start, and gets its files later. Opening them never keeps the job waiting."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {table: [] for table in TABLES}
        self._writer: RankWriter | None = None
        self._failure = ""
        self.is_full: Callable[[], bool] = self._is_full_before_files

    @property
    def failure(self) -> str:
        return self._failure or (self._writer.failure if self._writer else "")

    def _is_full_before_files(self) -> bool:
        return bool(self._failure) or len(self.rows["spans"]) > MOST_ROWS_BEFORE_FILES

    def appender(self, table: str) -> Append:
        return self.rows[table].append

    def drop(self, table: str, count: int = 1) -> None:
        if self._writer:
            self._writer.drop(table, count)

    def attach(self, writer: RankWriter) -> None:
        self._writer = writer
        self.is_full = writer.is_full

    def give_up(self, why: str) -> None:
        """There will be no files: rows are let go, and no more are taken."""
        self._failure = why
        for rows in self.rows.values():
            rows.clear()

    def close(self) -> None:
        if self._writer:
            self._writer.close()


class Job:
    """A process as a job: one recorder, one tracker, the hooks of the frameworks that it imports."""

    def __init__(self, run: Path, *, owns_run: bool = False) -> None:
        self.run = run
        self._owns_run = owns_run
        self._place = Place()
        self._created_ns = wall_ns()
        self.sink = LateSink()
        self.ranges = nvtx_ranges()
        self._choice = Choice.read()
        self._collecting: Collecting | None = None
        self.recorder = Recorder(
            self.sink, ranges=self.ranges, is_measured=self._choice.is_measured(off_blocks())
        )
        self.tracker = Tracker(self.recorder, on_training=self._begin)
        self._patches: list[Patches] = []
        self._frameworks: list[Framework] = []
        self._opener: threading.Thread | None = None
        self._pid = os.getpid()
        atexit.register(guarded("the end of the recording", self.finish, None))

    def hook(self, framework: str) -> None:
        """Install the hooks of a framework that has been imported; a second time does nothing."""
        known: Framework = importlib.import_module(
            f"profkit.instrument.frameworks.{framework}"
        ).FRAMEWORK
        if known not in self._frameworks:
            self._frameworks.append(known)
            seams = Seams(
                self.tracker, self.sink.appender("collectives"), self.sink.appender("samples")
            )
            self._patches.append(known.install(seams))

    def unhook(self) -> None:
        """Take every hook back. What was recorded stays."""
        while self._patches:
            self._patches.pop().undo()

    def finish(self) -> None:
        """Close the last step and the files. In a forked child this does nothing."""
        if os.getpid() != self._pid:
            return
        self.tracker.finish()
        self.recorder.stop()
        if self._opener is not None:
            self._opener.join(5.0)
        if self._collecting is not None:
            self._collecting.stop()
        self._count_failures()
        self.sink.close()
        if (
            self._owns_run
            and self._opener is not None
            and self._place.rank == 0
            and not self.sink.failure
        ):
            self._write_run(RunState.COMPLETE)
            guarded("the record of its own cost", self._record_own_cost, None)()

    def begin_step(self) -> None:
        """The loop delimits its own steps, from here on."""
        self.tracker.begin_explicit_step()

    def _begin(self) -> None:
        """The process trains: open its files, on a thread, so that the step does not wait for imports and disks."""
        note(TRAINED)
        self._place, device, timer = self._look_around()
        appenders = self.sink.appender("kernels"), self.sink.appender("samples")
        self._collecting = Collecting(
            self._choice, self.recorder, self._framework_in_use(), *appenders, device=device
        )
        self._opener = threading.Thread(
            target=guarded("opening the trace", self._open_files, None),
            args=(self._place, device, timer),
            name="profkit-opener",
            daemon=True,
        )
        self._opener.start()

    def _look_around(self) -> tuple[Place, str, DeviceTimer | None]:
        """Which rank this is and what it trains on, asked of the framework that trains."""
        framework = self._framework_in_use()
        place = (framework.place() if framework else None) or place_from_environment() or Place()
        device = framework.device() if framework else None
        timer = DeviceTimer(device, self.sink.appender("spans")) if device is not None else None
        if timer is not None:
            self.recorder.time_device(timer)
        return place, framework.device_name() if framework else "cpu", timer

    def _framework_in_use(self) -> Framework | None:
        """The framework whose seam reported last; with only one there is no question."""
        in_use = [
            framework for framework in self._frameworks if framework.name == self.tracker.framework
        ]
        return next(iter(in_use or self._frameworks), None)

    def _open_files(self, place: Place, device: str, timer: DeviceTimer | None) -> None:
        """Import what writes, and open the rank's files, without garbage collections of our own."""
        with collection_paused():
            self._open_files_paused(place, device, timer)
        opening = float(time.thread_time_ns())
        self.sink.appender("samples")((None, "profkit", OPENING_CPU, now_ns(), opening))

    def _open_files_paused(self, place: Place, device: str, timer: DeviceTimer | None) -> None:
        from profkit.trace import RankManifest, RankWriter

        framework = self._framework_in_use()
        if self._collecting is not None:
            guarded("collectors", self._collecting.start, None)()
        manifest = RankManifest(
            place.rank,
            platform.node(),
            os.getpid(),
            device,
            read_anchor(),
            place.local_rank,
            place.world_size,
            framework.name if framework else "",
        )
        self._append_span_cost()
        complete = guarded("device times", functools.partial(_complete, timer), None)
        try:
            if self._owns_run and place.rank == 0:
                self._write_run(RunState.RUNNING)
            writer = RankWriter(
                self.run, manifest, rows=self.sink.rows, columns=COLUMNS, complete=complete
            )
            self.sink.attach(writer)
        except FileExistsError:
            self._stay_out(
                f"another process of the job trains as rank {place.rank} and is recorded already"
            )
        except OSError as error:
            self._stay_out(f"{self.run}: {error.strerror}")

    def _write_run(self, state: RunState) -> None:
        """`run.json`, where no launcher of ours writes it."""
        from profkit import __version__
        from profkit.environment import plain_words, read_environment
        from profkit.trace import RunManifest
        from profkit.trace.integrity import this_process

        place, framework = self._place, self._framework_in_use()
        RunManifest(
            workload=Path(sys.argv[0]).stem,
            framework=framework.name if framework else "",
            state=state,
            world_size=place.world_size,
            created_ns=self._created_ns,
            ended_ns=None if state is RunState.RUNNING else wall_ns(),
            profkit_version=__version__,
            owner=this_process(),
            config={"command": plain_words(sys.argv)},
            environment=read_environment(),
        ).write(self.run)

    def _record_own_cost(self) -> None:
        from profkit.run.session import record_own_cost

        record_own_cost(self.run)

    def _stay_out(self, why: str) -> None:
        if self._collecting is not None:
            self._collecting.stop()
        self.sink.give_up(why)
        self.unhook()
        log.warning("profkit: this process is not recorded: %s", why)

    def _append_span_cost(self) -> None:
        cost = measure_span_cost(ranges=self.ranges, repeats=500)
        self.sink.appender("samples")((None, "profkit", "span_cost_ns", now_ns(), cost))

    def _count_failures(self) -> None:
        append = self.sink.appender("samples")
        for site, count in FAILURES.items():
            append((None, "profkit", f"failures_count:{site}", now_ns(), float(count)))


def _complete(timer: DeviceTimer | None, final: bool) -> None:
    """Do what the writer's thread does before each flush."""
    check_collection()
    if timer is not None:
        timer.collect(final)


def place_from_environment() -> Place | None:
    """The rank that the launcher gave this process, by the variables of torchrun, Paddle, Slurm or Open MPI."""
    for rank, size, local in _RANK_VARIABLES:
        if os.environ.get(rank, "").isdigit():
            return Place(int(os.environ[rank]), _number(size, 1), _number(local, 0))
    return None


_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def _number(variable: str, otherwise: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else otherwise


@functools.cache
def current_job() -> Job:
    """The job that this process is, in the run that its launcher made, or in one of its own."""
    run = os.environ.get(RUN_VARIABLE)
    return Job(Path(run)) if run else Job(_own_run(), owns_run=True)


def _own_run() -> Path:
    """A run for a job that was not started by `profkit run`: all ranks of one launch share it."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "python"
    folder = (
        Path(os.environ.get("PROFKIT_OUTPUT", "traces")).absolute()
        / f"{script}-{time.strftime('%Y%m%d')}-{_launch()}"
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ProfkitError(f"{folder}: {error.strerror}") from error
    return folder


def _launch() -> str:
    """What the ranks of one launch have in common, and no other launch has: its name, else the process that has started them."""
    if place_from_environment() is not None:
        return _launch_name() or str(os.getppid())
    return str(os.getppid() if _is_started_by_first_rank() else os.getpid())


def _launch_name() -> str:
    """The launcher's name for the launch, which ranks on several nodes share; torchrun's is `none` or the user's, and is used again, with another port."""
    elastic, step = os.environ.get("TORCHELASTIC_RUN_ID", "none"), os.environ.get("SLURM_STEP_ID")
    if elastic != "none" and os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return f"{elastic}-{os.environ.get('MASTER_PORT', '')}"
    return f"{os.environ.get('SLURM_JOB_ID', '')}.{step}" if step else ""


def _is_started_by_first_rank() -> bool:
    """Whether the script that the user started has started this process as one of its ranks: as Lightning does, or with `spawn`."""
    if multiprocessing.parent_process() is not None:
        return "MASTER_PORT" in os.environ
    return _number("LOCAL_RANK", 0) > 0
