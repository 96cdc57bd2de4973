"""Opens a run: wires recorder, collectors and writer together, and closes them whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit import __version__, vocab
from profkit.analysis.overview import build_overview
from profkit.analysis.own_cost import as_record
from profkit.clock import now_ns, read_anchor, wall_ns
from profkit.environment import read_environment
from profkit.errors import ProfkitError
from profkit.instrument.blocks import off_blocks
from profkit.instrument.device import DeviceTimer
from profkit.instrument.frameworks.base import Framework, InnerBooks, Place, load_framework
from profkit.instrument.guard import FAILURES, Patches, guarded
from profkit.instrument.ranges import nvtx_ranges
from profkit.instrument.recorder import Recorder, measure_span_cost
from profkit.instrument.rows import COLUMNS, Append
from profkit.run.collecting import Choice, Collecting
from profkit.text import safe_text
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace
from profkit.trace.files import new_run_folder
from profkit.trace.integrity import this_process
from profkit.trace.writer import no_rows
from profkit.vocab import RunState

log = logging.getLogger("profkit")


@dataclass
class Session:
    """An open run: the folder that it fills, the recorder that fills it, and what is to be noted of it when it ends."""

    path: Path
    recorder: Recorder
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def open_session(
    parent: Path, name: str, manifest: RunManifest, *, device: str
) -> Iterator[Session]:
    """Record what happens in the block as a new run below `parent`, of one rank.

    An exception that leaves the block marks the run aborted, with its class as the reason, and
    goes on. A disk that fails while the block runs does not show in the block.
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
    """A new folder with its `run.json`."""
    path = _new_folder(parent, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    manifest = dataclasses.replace(
        manifest,
        created_ns=wall_ns(),
        profkit_version=__version__,
        owner=this_process(),
        environment={**read_environment(), **manifest.environment},
    )
    try:
        manifest.write(path)
    except OSError as error:
        raise _not_writable(path, error) from error
    return path


@contextlib.contextmanager
def open_rank(
    path: Path,
    framework: str,
    device: str,
    *,
    place: Place | None = None,
    on_failure: Callable[[str], None] = lambda why: None,
) -> Iterator[Recorder]:
    """Record what happens in the block as one rank of the run in `path`. A disk that fails meanwhile is told when the block has ended."""
    place = place or Place()
    known = _framework(framework)
    rows = no_rows()
    timed_device = guarded("the device's clock", known.device, None)() if known else None
    timer = DeviceTimer(timed_device, rows["spans"].append) if timed_device is not None else None
    try:
        manifest = RankManifest(
            place.rank,
            platform.node(),
            os.getpid(),
            device,
            read_anchor(),
            place.local_rank,
            place.world_size,
            framework,
        )
        writer = RankWriter(
            path,
            manifest,
            rows=rows,
            columns=COLUMNS,
            complete=guarded("device times", timer.collect, None) if timer else None,
        )
    except OSError as error:
        raise _not_writable(path, error) from error
    ranges = nvtx_ranges()
    writer.appender("samples")(
        (None, "profkit", "span_cost_ns", now_ns(), measure_span_cost(ranges=ranges))
    )
    choice = Choice.read()
    recorder = Recorder(
        writer, ranges=ranges, is_measured=choice.is_measured(off_blocks()), device=timer
    )
    patches = _hook_inside(known, recorder, writer)
    collecting = Collecting(
        choice,
        recorder,
        known,
        writer.appender("kernels"),
        writer.appender("samples"),
        device=device,
    )
    guarded("collectors", collecting.start, None)()
    state = "complete"
    try:
        yield recorder
    except BaseException as error:
        state = f"aborted: {reason(error)}"
        raise
    finally:
        patches.undo()
        recorder.stop()
        collecting.stop()
        count_failures(writer.appender("samples"))
        writer.close(state)
        if writer.failure:
            on_failure(writer.failure)


def count_failures(append: Append) -> None:
    """Write down which of our hooks failed in this process, and how often."""
    for site, count in FAILURES.items():
        append((None, "profkit", f"{vocab.FAILURES}{site}", now_ns(), float(count)))


def _framework(name: str) -> Framework | None:
    return guarded("the framework's hooks", load_framework, None)(name) if name else None


def _hook_inside(framework: Framework | None, recorder: Recorder, writer: RankWriter) -> Patches:
    """The inside of loaders and of the gradient exchange, which a loop cannot tell itself."""
    if framework is None:
        return Patches()
    books = InnerBooks(recorder, writer.appender("collectives"), writer.appender("samples"))
    installed = guarded("the framework's hooks", framework.install_inner, None)(books)
    if installed is None:
        return Patches()
    patches, recorder.settle_exchange = installed
    return patches


def record_own_cost(run: Path) -> None:
    """Write into an ended run what profkit cost it, from what the run itself has measured."""
    try:
        trace = Trace.open(run)
        found = build_overview(trace, with_kernels=False).own_cost
        dataclasses.replace(trace.manifest, own_cost=as_record(found)).write(run)
    except (ProfkitError, OSError) as error:
        log.warning("profkit: its own cost cannot be written: %s", error)


def _new_folder(parent: Path, name: str) -> Path:
    try:
        return new_run_folder(parent, name)
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(parent))}: cannot make a run's folder there ({error.strerror}); choose another place with --output"
        ) from error


def _not_writable(path: Path, error: OSError) -> ProfkitError:
    return ProfkitError(
        f"{safe_text(str(path))}: cannot be written ({error.strerror}); choose another place with --output"
    )


def reason(error: BaseException) -> str:
    """Why a run was aborted, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def finish_run(path: Path, why: str = "", **changes: Any) -> None:
    """Write into `run.json` that the run has ended, and why if not as planned."""
    try:
        manifest = RunManifest.read(path)
        dataclasses.replace(
            manifest,
            state=RunState.ABORTED if why else RunState.COMPLETE,
            why=why,
            ended_ns=wall_ns(),
            **changes,
        ).write(path)
    except (ProfkitError, OSError) as error:
        log.warning(
            "profkit: %s cannot be marked as ended: %s",
            safe_text(str(path)),
            getattr(error, "strerror", None) or error,
        )
