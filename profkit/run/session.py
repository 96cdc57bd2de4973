"""Open a run, record into it, and close it whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.analysis.frame import frame_of
from profkit.analysis.own_cost import as_record
from profkit.clock import wall_ns
from profkit.errors import ProfkitError
from profkit.instrument.device import DeviceTimer, note_no_events
from profkit.instrument.frameworks.base import Framework, InnerBooks, load_framework
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.watching import WorkerWatch
from profkit.instrument.ranges import nvtx_ranges
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Row
from profkit.rank import Rank
from profkit.run.attach.later import hook_later
from profkit.run.choosing import Choice
from profkit.run.collecting import Collecting
from profkit.run.lookout.own_loop import OwnLoop, look_out
from profkit.run.lookout.workers import watch_worker
from profkit.run.wiring import (
    complete_manifest,
    describe_rank,
    make_recorder,
    note_failures,
    note_span_cost,
    note_threads,
    open_writer,
)
from profkit.text import safe_text
from profkit.trace import RankWriter, RunManifest, Trace
from profkit.trace.files import new_run_folder
from profkit.trace.reader import find_ranks
from profkit.trace.writer import no_rows
from profkit.vocab import WORKER_STACKS, RunState, rank_folder

log = logging.getLogger("profkit")

SPAN_COST_REPEATS = 2_000
"""Phases per round while the span cost is measured, before the loop begins."""

MAX_REASON_CHARS = 300
"""An exception's message may hold a whole program."""


@dataclass
class Session:
    """An open run: its folder, the recorder that fills it, and notes for its end."""

    path: Path
    recorder: Recorder
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def open_session(
    parent: Path, name: str, manifest: RunManifest, *, device: str
) -> Iterator[Session]:
    """Record the block as a new run of one rank below `parent`.

    An exception that leaves the block marks the run as aborted and is raised again. A disk that
    fails while the block runs does not disturb the block.
    """
    path = make_run(parent, name, manifest)
    why = ""
    notes: tuple[str, ...] = ()
    failures: list[str] = []
    try:
        with open_rank(path, manifest.framework, device, on_failure=failures.append) as recorder:
            session = Session(path, recorder)
            yield session
            notes = session.notes
    except BaseException as error:
        why = reason(error)
        raise
    finally:
        finish_run(path, why or next(iter(failures), ""), notes=notes)


def make_run(parent: Path, name: str, manifest: RunManifest) -> Path:
    """Make a new folder for a run, with its `run.json`."""
    try:
        path = new_run_folder(parent, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(parent))}: cannot make a run's folder there ({error.strerror}); "
            "choose another place with --output"
        ) from error
    try:
        complete_manifest(manifest, created_ns=wall_ns()).write(path)
    except OSError as error:
        raise _not_writable(path, error) from error
    return path


@contextlib.contextmanager
def open_rank(
    path: Path,
    framework: str,
    device: str,
    *,
    rank: Rank | None = None,
    on_failure: Callable[[str], None] = lambda why: None,
    loop: OwnLoop | None = None,
) -> Iterator[Recorder]:
    """Record the block as one rank of the run in `path`.

    If the disk fails meanwhile, `on_failure` is called when the block has ended. The lookout
    follows the block, unless it follows a `loop` already.
    """
    load = guarded("the framework's hooks", load_framework, None)
    known = load(framework) if framework else None
    rows = no_rows()
    timer = _open_timer(known, device, rows)
    complete = guarded("device times", timer.collect, None) if timer else None
    try:
        manifest = describe_rank(rank or Rank(), device, framework)
        writer = open_writer(path, manifest, rows, complete)
    except OSError as error:
        raise _not_writable(path, error) from error
    samples, choice, ranges = writer.appender("samples"), Choice.read(), nvtx_ranges()
    note_span_cost(samples, ranges, repeats=SPAN_COST_REPEATS)
    note_threads(samples)
    recorder = make_recorder(writer, choice, ranges, timer)
    watch = _watch_workers(recorder, choice, path, manifest.rank)
    patches = _hook_inside(known, recorder, writer, watch)
    collecting = Collecting(
        choice, recorder, known, writer.appender("kernels"), samples, device=device, rows=rows
    )
    guarded("collectors", collecting.start, None)()
    state = "complete"
    try:
        with contextlib.nullcontext(loop) if loop else look_out(path, rank or Rank()) as followed:
            followed.recorder, followed.framework = recorder, known
            yield recorder
    except BaseException as error:
        state = f"aborted: {reason(error)}"
        raise
    finally:
        patches.undo()
        recorder.stop()
        collecting.stop()
        note_failures(writer.appender("events"))
        writer.close(state)
        if writer.failure:
            on_failure(writer.failure)


def _watch_workers(recorder: Recorder, choice: Choice, path: Path, rank: int) -> WorkerWatch | None:
    """Have loader workers look out, and return what has their stacks sampled, if asked for."""
    in_worker = functools.partial(watch_worker, path)
    recorder.in_worker = guarded("lookout in a worker", in_worker, None)
    watch = guarded("stacks of loader workers", choice.watch_workers, None)()
    if watch is not None:
        watch.publish(str(path.absolute() / rank_folder(rank) / WORKER_STACKS))
    return watch


def _open_timer(
    framework: Framework | None, device: str, rows: dict[str, list[Row]]
) -> DeviceTimer | None:
    """Return a timer for the framework's device; `None` if it has none, which is noted."""
    samples, events = rows["samples"].append, rows["events"].append
    timed = guarded("the device's clock", framework.device, None)() if framework else None
    if timed is not None:
        return DeviceTimer(timed, rows["spans"].append, samples=samples, events=events)
    if device != "cpu":
        note_no_events(events)
    return None


def _hook_inside(
    framework: Framework | None, recorder: Recorder, writer: RankWriter, watch: WorkerWatch | None
) -> Patches:
    """Hook the inside of loaders and of the gradient exchange, which the loop cannot report."""
    if framework is None:
        return Patches()
    collectives, samples = writer.appender("collectives"), writer.appender("samples")
    books = InnerBooks(recorder, collectives, samples, writer.appender("events"), watch)
    installed = guarded("the framework's hooks", framework.install_inner, None)(books)
    if installed is None:
        return Patches()
    patches, recorder.settle_exchange = installed
    hook_later(framework, patches, books)
    return patches


def record_own_cost(run: Path) -> None:
    """Write into an ended run what profkit cost it, by the run's own measurements."""
    try:
        trace = Trace.open(run)
        found = frame_of(trace).own_cost
        dataclasses.replace(trace.manifest, own_cost=as_record(found)).write(run)
    except (ProfkitError, OSError) as error:
        log.warning("profkit: its own cost cannot be written: %s", error)


def _not_writable(path: Path, error: OSError) -> ProfkitError:
    return ProfkitError(
        f"{safe_text(str(path))}: cannot be written ({error.strerror}); "
        "choose another place with --output"
    )


def reason(error: BaseException) -> str:
    """Return why a run was aborted, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_CHARS]


def first_libraries(run: Path) -> dict[str, Any]:
    """Return the libraries of a run's first rank that has any, for `run.json`."""
    for rank in find_ranks(run):
        with contextlib.suppress(ProfkitError):
            libraries = rank.manifest.environment.get("libraries")
            if libraries:
                return {"libraries": libraries}
    return {}


def finish_run(path: Path, why: str = "", **changes: Any) -> None:
    """Write into `run.json` that the run has ended, and why it was aborted, if so."""
    try:
        manifest = RunManifest.read(path)
        dataclasses.replace(
            manifest,
            state=RunState.ABORTED if why else RunState.COMPLETE,
            why=why,
            ended_ns=wall_ns(),
            environment={**manifest.environment, **first_libraries(path)},
            **changes,
        ).write(path)
    except (ProfkitError, OSError) as error:
        log.warning(
            "profkit: %s cannot be marked as ended: %s",
            safe_text(str(path)),
            getattr(error, "strerror", None) or error,
        )
