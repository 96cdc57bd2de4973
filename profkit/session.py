"""Opens a run: wires recorder, collectors and writer together, and closes them whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profkit import __version__
from profkit.analysis.overview import build_overview
from profkit.analysis.own_cost import as_record
from profkit.clock import now_ns, read_anchor, wall_ns
from profkit.collectors.base import Collector
from profkit.collectors.poller import Poller
from profkit.environment import read_environment
from profkit.errors import ProfkitError
from profkit.instrument.blocks import off_blocks
from profkit.instrument.ranges import nvtx_ranges
from profkit.instrument.recorder import Recorder, measure_span_cost
from profkit.plugins import COLLECTORS
from profkit.text import safe_text
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace
from profkit.trace.files import new_run_folder
from profkit.trace.verify import this_process
from profkit.vocab import RunState

log = logging.getLogger("profkit")


@dataclass(frozen=True)
class Session:
    """An open run: the folder that it fills, and the recorder that fills it."""

    path: Path
    recorder: Recorder


@contextlib.contextmanager
def open_session(parent: Path, name: str, manifest: RunManifest, *, device: str) -> Iterator[Session]:
    """Record what happens in the block as a new run below `parent`.

    An exception that leaves the block marks the run aborted, with its class as the reason, and
    goes on. A disk that fails while the block runs does not show in the block.
    """
    path = _new_folder(parent, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    manifest = dataclasses.replace(
        manifest, created_ns=wall_ns(), profkit_version=__version__, owner=this_process(), environment={**read_environment(), **manifest.environment}
    )
    writer = _open_files(path, manifest, device)
    ranges = nvtx_ranges()
    writer.appender("samples")((None, "profkit", "span_cost_ns", now_ns(), measure_span_cost(ranges=ranges)))
    poller = Poller(list(_usable_collectors()), writer.appender("samples"))
    poller.start()
    recorder = Recorder(writer, ranges=ranges, is_measured=off_blocks())
    why = ""
    try:
        yield Session(path, recorder)
    except BaseException as error:
        why = _reason(error)
        raise
    finally:
        recorder.stop()
        poller.stop()
        writer.close("complete" if not why else f"aborted: {why}")
        _finish(path, manifest, why or writer.failure)


def record_own_cost(run: Path) -> None:
    """Write into an ended run what profkit cost it, from what the run itself has measured."""
    try:
        trace = Trace.open(run)
        found = build_overview(trace).own_cost
        dataclasses.replace(trace.manifest, own_cost=as_record(found)).write(run)
    except (ProfkitError, OSError) as error:
        log.warning("profkit: its own cost cannot be written: %s", error)


def _new_folder(parent: Path, name: str) -> Path:
    try:
        return new_run_folder(parent, name)
    except OSError as error:
        raise ProfkitError(f"{safe_text(str(parent))}: cannot make a run's folder there ({error.strerror}); choose another place with --output") from error


def _open_files(path: Path, manifest: RunManifest, device: str) -> RankWriter:
    try:
        manifest.write(path)
        return RankWriter(path, RankManifest(0, platform.node(), os.getpid(), device, read_anchor()))
    except OSError as error:
        raise ProfkitError(f"{safe_text(str(path))}: cannot be written ({error.strerror}); choose another place with --output") from error


def _usable_collectors() -> Iterator[Collector]:
    loaded, broken = COLLECTORS.load_all()
    for name, error in broken.items():
        log.warning("profkit: the %s collector cannot be loaded: %s", name, error)
    for name, collector in loaded.items():
        try:
            if not collector.why_not():
                yield collector
        except Exception as error:  # noqa: BLE001  # a collector is a plug-in: it may fail in any way, and the run goes on without it
            log.warning("profkit: the %s collector cannot tell whether it works here: %s", name, error)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _finish(path: Path, manifest: RunManifest, why: str) -> None:
    state = RunState.ABORTED if why else RunState.COMPLETE
    try:
        dataclasses.replace(manifest, state=state, why=why, ended_ns=wall_ns()).write(path)
    except OSError as error:
        log.warning("profkit: %s cannot be marked as ended: %s", safe_text(str(path)), error.strerror)
