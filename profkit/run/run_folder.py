"""Make a run's folder, and write into its `run.json` how the run has ended."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

from profkit.clock import wall_ns
from profkit.errors import ProfkitError
from profkit.frame.own_cost import as_record
from profkit.frame.run_frame import frame_of
from profkit.run.wiring import complete_manifest
from profkit.text import safe_text
from profkit.trace import RunManifest, Trace
from profkit.trace.files import new_run_folder
from profkit.trace.reader import find_ranks
from profkit.vocab import RunState

log = logging.getLogger("profkit")

MAX_REASON_CHARS = 300
"""An exception's message may hold a whole program."""


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
        raise ProfkitError(
            f"{safe_text(str(path))}: cannot be written ({error.strerror}); "
            "choose another place with --output"
        ) from error
    return path


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


def record_own_cost(run: Path) -> None:
    """Write into an ended run what profkit cost it, by the run's own measurements."""
    try:
        trace = Trace.open(run)
        found = frame_of(trace).own_cost
        dataclasses.replace(trace.manifest, own_cost=as_record(found)).write(run)
    except (ProfkitError, OSError) as error:
        log.warning("profkit: its own cost cannot be written: %s", error)


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
