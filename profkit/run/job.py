"""Records the job that this process is: any training loop, hooked through its framework.

Files are opened when the process first trains, not before: launchers, loader workers and helpers
import frameworks too, and leave no trace.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import logging
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.attached import RUN_VARIABLE, SAMPLES_VARIABLE, TRAINED, UNCOMPILED, note
from profkit.clock import now_ns, wall_ns
from profkit.instrument.device import DeviceTimer, note_no_events
from profkit.instrument.frameworks.base import Seams, load_framework
from profkit.instrument.garbage import check_collection, collection_paused
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.ranges import nvtx_ranges
from profkit.instrument.tracking.tracker import Tracker
from profkit.rank import Rank, rank_of
from profkit.run.attach.watcher import watch
from profkit.run.awaiting import DISK_S, DiskWork, await_thread
from profkit.run.choosing import Choice
from profkit.run.collecting import Collecting
from profkit.run.late_sink import LateSink
from profkit.run.outside import outside
from profkit.run.own_run import conclude_own_run, own_run_folder, write_own_run
from profkit.run.wiring import (
    describe_rank,
    make_recorder,
    note_failures,
    note_span_cost,
    note_threads,
    open_writer,
)
from profkit.vocab import OPENING_CPU, rank_folder

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Framework
    from profkit.run.lookout.lookout import Lookout
    from profkit.trace import RankManifest

log = logging.getLogger("profkit")

DESCRIBED_AFTER = 3
"""The job is described once so many steps have ended, when it has all its parts."""

LOOK_EVERY_S = 0.1
"""So often the thread that opened the files looks if they have."""

SPAN_COST_REPEATS = 500
"""The job trains while its span cost is measured, so the measurement is kept short."""

LAST_PRIORITY = -1_000_000
"""The priority of our finalizer: those of the job come first."""


class Job:
    """A process as a job: its recorder, its tracker, the hooks of its frameworks."""

    def __init__(self, run: Path, *, owns_run: bool = False) -> None:
        self.run = run
        self._owns_run = owns_run
        self._rank = Rank()
        self._created_ns = wall_ns()
        self.sink = LateSink()
        self.ranges = nvtx_ranges()
        self._choice = Choice.read()
        self._collecting: Collecting | None = None
        self.recorder = make_recorder(self.sink, self._choice, self.ranges)
        self.recorder.in_worker = guarded("lookout in a worker", self._look_out_in_worker, None)
        self.tracker = Tracker(self.recorder, on_training=self._begin)
        samples = os.environ.get(SAMPLES_VARIABLE, "")
        self.tracker.say_samples(int(samples) if samples.isdecimal() else None)
        self._lookout: Lookout | None = None
        self._memory: Any = None
        self._patches: list[Patches] = []
        self._frameworks: list[Framework] = []
        self._opener: threading.Thread | None = None
        self._conclusion: DiskWork[None] | None = None
        self._ended = threading.Event()
        self._config: Mapping[str, Any] = {}
        """The description of the job, once its first steps have ended."""
        self._pid = os.getpid()
        self._is_finished = False
        call_at_end(guarded("the end of the recording", self.finish, None))

    def hook(self, framework: str) -> None:
        """Install the hooks of a framework that has been imported; a second time does nothing."""
        known = load_framework(framework)
        if known not in self._frameworks:
            self._frameworks.append(known)
            seams = Seams(
                self.tracker,
                self.sink.appender("collectives"),
                self.sink.appender("samples"),
                self.sink.appender("events"),
            )
            self._patches.append(known.install(seams))
            hook_later(known, self._patches[-1], seams)
            follow = guarded("memory", known.memory_history, None)
            plan = self._choice.memory
            self._memory = self._memory or follow(
                self.run,
                lambda: (known.rank() or rank_of() or Rank()).number,
                from_start=plan is not None and plan.start == 0,
            )
        rank = rank_of()
        # Other processes that import a framework may be launchers, or workers of a rank.
        if rank is not None and rank.world_size > 1 and multiprocessing.parent_process() is None:
            self.look_out(rank)

    def unhook(self) -> None:
        """Remove every hook. What was recorded stays."""
        while self._patches:
            self._patches.pop().undo()

    def finish(self, error: BaseException | None = None) -> None:
        """Close the last step and the files, once. In a forked child this does nothing.

        The error is the one that ends the job, if the caller knows it.
        """
        if os.getpid() != self._pid or self._is_finished:
            return
        self._is_finished = True
        if self._memory is not None:
            guarded("memory", self._memory.finish, None)()
        self.tracker.finish()
        self.recorder.stop()
        self._ended.set()
        end_s = time.monotonic() + DISK_S
        if self._lookout is not None:
            self._lookout.stop(error, longest_s=0.0)
        if self._opener is not None and not await_thread(self._opener, DISK_S):
            self.sink.give_up(f"{self.run}: its files could not be opened in time")
            log.warning(
                "profkit: this process is not recorded: %s; choose another place with --output",
                self.sink.failure,
            )
            return
        if self._collecting is not None:
            self._collecting.stop()
        note_failures(self.sink.appender("events"))
        self.sink.close()
        if self._lookout is not None:  # it has written meanwhile
            self._lookout.stop(error, longest_s=max(0.0, end_s - time.monotonic()))
        if self._conclusion is not None and not self.sink.failure:
            guarded("the end of the run", self._conclusion.finish, None)(self.run)

    def _begin(self) -> None:
        """Open the files on a thread, now that the process trains: the step does not wait."""
        note(TRAINED)
        framework = self._framework_in_use()
        if framework is not None:
            self.tracker.seen.thread = guarded("identity", framework.describe_thread, {})()
        rank = framework.rank() if framework else None
        self._rank = rank or rank_of() or Rank()
        timed_device = framework.device() if framework else None
        timer = None
        if timed_device is not None:
            timer = DeviceTimer(
                timed_device,
                self.sink.appender("spans"),
                samples=self.sink.appender("samples"),
                events=self.sink.appender("events"),
            )
            self.recorder.time_device(timer)
        device = framework.device_name() if framework else "cpu"
        if timer is None and device != "cpu":
            note_no_events(self.sink.appender("events"))
        self._collecting = Collecting(
            self._choice,
            self.recorder,
            framework,
            self.sink.appender("kernels"),
            self.sink.appender("samples"),
            device=device,
            rows=self.sink.rows,
            needs_lines=self._needs_lines,
            memory=self._memory,
            is_first=self._rank.number == 0,
        )
        opener = threading.Thread(
            target=guarded("opening the trace", self._open_files, None),
            args=(self._rank, device, timer),
            name="profkit-opener",
            daemon=True,
        )
        opener.start()
        self._opener = opener

    def _framework_in_use(self) -> Framework | None:
        """Return the framework whose hook reported last; with only one there is no question."""
        for framework in self._frameworks:
            if framework.name == self.tracker.framework:
                return framework
        return self._frameworks[0] if self._frameworks else None

    def _open_files(self, rank: Rank, device: str, timer: DeviceTimer | None) -> None:
        """Import the writer and open the rank's files, without a garbage collection of our own."""
        if self._owns_run:
            try:
                self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                self._stay_out(f"{self.run}: {error.strerror}")
                return
        self.look_out(rank)
        samples = self.sink.appender("samples")
        framework = self._framework_in_use()
        before_flush = functools.partial(_before_flush, self.tracker, timer)
        complete = guarded("device times", before_flush, None)
        with collection_paused():
            from profkit.run.compiled import missing_modules
            from profkit.run.facts import CPU_NS

            if missing_modules():
                note(UNCOMPILED)

            if self._collecting is not None:
                guarded("collectors", self._collecting.start, None)()
            manifest = describe_rank(rank, device, framework.name if framework else "")
            note_span_cost(samples, self.ranges, repeats=SPAN_COST_REPEATS)
            note_threads(samples)
            try:
                if self._owns_run and rank.number == 0 and not self.sink.failure:
                    write_own_run(self.run, manifest.framework, rank.world_size, self._created_ns)
                    self._conclusion = DiskWork(lambda: conclude_own_run(self.run, self._config))
                writer = open_writer(self.run, manifest, self.sink.rows, complete)
                if self.sink.failure:  # the job has ended before its disk answered
                    writer.close()
                    shutil.rmtree(self.run / rank_folder(rank.number), ignore_errors=True)
                    return
                self.sink.attach(writer)
                guarded("lines", self._announce, None)(rank)
            except FileExistsError:
                others = f"another process of the job trains as rank {rank.number}"
                self._stay_out(f"{others} and is recorded already")
            except OSError as error:
                self._stay_out(f"{self.run}: {error.strerror}")
        spent_ns = float(time.thread_time_ns() + sum(CPU_NS))
        samples((None, "profkit", OPENING_CPU, now_ns(), spent_ns))
        if framework is not None and not self.sink.failure:
            guarded("identity", self._describe, None)(framework, manifest)

    def _announce(self, rank: Rank) -> None:
        """Have the training thread sampled from outside."""
        from profkit.eye.announcing import announce

        if self._collecting is not None and self._choice.lines:
            thread, name = self._collecting.thread
            witness = self._lookout.thread if self._lookout is not None else 0
            native = self._collecting.native_id
            announce(self.run, rank.number, thread, name, native=native, witness=witness)

    def _needs_lines(self) -> bool:
        """Return true if this process must sample its own stacks, because no other one does."""
        from profkit.eye.announcing import why_not_read

        return why_not_read(self.run) is not None

    def look_out(self, rank: Rank) -> None:
        """Have the lookout note from now on when this rank stands still."""
        guarded("lookout", self._look_out, None)(rank)

    def _look_out(self, rank: Rank) -> None:
        from profkit.run.lookout.lookout import Lookout

        if self._lookout is None:
            self._lookout = Lookout(self.run, self.tracker)
        self._lookout.start(rank, self._framework_in_use)
        if self._ended.is_set():  # the job ended before its files were open
            self._lookout.stop()

    def _look_out_in_worker(self, meter: Any) -> None:
        from profkit.run.lookout.workers import watch_worker

        watch_worker(self.run, meter, lines=self._choice.lines)

    def _describe(self, framework: Framework, manifest: RankManifest) -> None:
        """Write what the job trains into `rank.json`, after its first steps or at its end."""
        while self.recorder.step_now < DESCRIBED_AFTER and not self._ended.wait(LOOK_EVERY_S):
            pass
        before_ns = time.thread_time_ns()
        with collection_paused():
            self._config = framework.describe_job(self.tracker)
            self.sink.describe(dataclasses.replace(manifest, config=self._config))
        spent_ns = float(time.thread_time_ns() - before_ns)
        self.sink.appender("samples")((None, "profkit", OPENING_CPU, now_ns(), spent_ns))

    def _stay_out(self, why: str) -> None:
        """Record nothing in this process, and say why."""
        if self._lookout is not None:
            self._lookout.give_up()
        if self._collecting is not None:
            self._collecting.stop()
        self.sink.give_up(why)
        self.unhook()
        log.warning("profkit: this process is not recorded: %s", why)


def hook_later(framework: Framework, patches: Patches, seams: Seams) -> None:
    """Install each hook of `framework.later` now, or as soon as its module was imported."""

    def hook(module: str) -> None:
        guarded(f"hooks of {module}", framework.later[module], None)(patches, seams)

    if not framework.later:
        return
    watcher = watch({module: module for module in framework.later}, hook)

    def stop() -> None:
        with contextlib.suppress(ValueError):  # the job may have replaced the list
            sys.meta_path.remove(watcher)

    patches.on_undo(stop)


def call_at_end(finish: Callable[[], None]) -> None:
    """Call a function when this process ends; it may be called twice.

    A child that multiprocessing forks leaves by `os._exit`, before `atexit`: it calls its own
    finalizers first, which are those of the lowest priority last.
    """
    atexit.register(finish)
    if multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=LAST_PRIORITY)


def _before_flush(tracker: Tracker, timer: DeviceTimer | None, final: bool) -> None:
    """Do on the writer's thread what is due before each flush."""
    check_collection()
    tracker.replay_late()
    if timer is not None:
        timer.collect(final)


@contextlib.contextmanager
def recorded(run: Path, rank: Rank) -> Iterator[Job]:
    """Record the block as a rank of a run that is made already; hooks are removed after it."""
    with outside(run, os.environ, in_job=True):
        yield from _recorded(run, rank)


def _recorded(run: Path, rank: Rank) -> Iterator[Job]:
    job = Job(run)
    job.look_out(rank)
    finish = guarded("the end of the recording", job.finish, None)
    try:
        yield job
    except BaseException as error:
        finish(error)
        raise
    finally:
        finish()
        job.unhook()


@functools.cache
def current_job() -> Job:
    """Return the job that this process is, in the run of its launcher, or in one of its own."""
    run = os.environ.get(RUN_VARIABLE)
    return Job(Path(run)) if run else Job(own_run_folder(), owns_run=True)
