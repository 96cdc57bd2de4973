"""Scores of predictions: which later runs made their change, and what these took."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profkit.analysis.config_join import find_script, join_config
from profkit.analysis.overview import silent_ranks
from profkit.errors import ProfkitError
from profkit.explain.predict.job import Job, read_job
from profkit.explain.predict.other_runs import (
    CHANGES,
    WORK,
    is_mixed,
    other_differences,
    uses_dali,
)
from profkit.explain.predict.prediction import AMP, BATCH, DALI, RANKS, WITHOUT, WORKERS
from profkit.explain.predict.record import Entry, append, read_record
from profkit.trace import RunManifest, Trace
from profkit.trace.folders import find_runs
from profkit.vocab import BAD_TIMES, RunState

MOST_RUNS, MOST_WAITING = 50, 50
"""The newest runs of a folder that are compared with the newest predictions without a score."""

MOST_OTHER_SAMPLES = 0.01
"""Ranks with other batches differ by more than this share in the samples of a step."""


def score_record(path: Path, folder: Path, only: Path | None = None) -> tuple[Entry, ...]:
    """Score the predictions that a run of the folder matches by now; return the whole record.

    The first of the newest runs that matches is the score. With `only`, predictions that this run
    does not match are not looked at: it is the only one to be read then, as a rule.
    """
    entries = read_record(path)
    waiting = [entry for entry in entries if entry.measured_ns is None][-MOST_WAITING:]
    if not waiting:
        return entries
    newest = find_runs(folder)[: -MOST_RUNS - 1 : -1]
    later = LaterRuns([*newest, only] if only is not None else newest)
    for entry in waiting:
        first = _manifest_of(folder / Path(entry.run).name)
        if first is None or first.created_ns != entry.created_ns:
            continue
        if only is not None and not later.matches(entry, first, only):
            continue
        for run in later.runs:
            if later.matches(entry, first, run):
                line = {"scored": entry.key, "run": run.name, "at_ns": time.time_ns()}
                line["run_created_ns"] = later.manifests[run].created_ns
                append(path, {**line, "measured_ns": later.measured_ns(run)})
                break
    return read_record(path)


class LaterRuns:
    """The runs that predictions are compared with, oldest first; each is read once."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.manifests = dict[Path, RunManifest]()
        for run in runs:
            manifest = _manifest_of(run)
            if manifest is not None:
                self.manifests[run] = manifest
        self.runs = sorted(self.manifests, key=lambda run: self.manifests[run].created_ns)
        self._jobs = dict[Path, Job | None]()

    def matches(self, entry: Entry, first: RunManifest, run: Path) -> bool:
        """Return true if a run shows what was predicted from the run that `first` is of."""
        later = self.manifests.get(run)
        if later is None or (run.name, later.created_ns) == entry.base:
            return False
        if not may_score(entry, first, later):
            return False
        job = self._job(run)
        return job is not None and has_effect(entry.question, job, entry.samples)

    def measured_ns(self, run: Path) -> float | None:
        job = self._job(run)
        return None if job is None else float(job.now_ns.value)

    def _job(self, run: Path) -> Job | None:
        if run not in self._jobs:
            self._jobs[run] = open_run(run)
        return self._jobs[run]


def _manifest_of(run: Path) -> RunManifest | None:
    try:
        return RunManifest.read(run)
    except (ProfkitError, OSError, ValueError):  # a name may hold what no file's name can
        return None


def open_run(run: Path) -> Job | None:
    """Return a run, or `None` if its figures are not reliable: then it scores nothing."""
    try:
        trace = Trace.open(run)
        job = read_job(trace)
        is_whole = not (trace.changed or trace.problems or silent_ranks(trace))
    except (ProfkitError, OSError, ValueError):
        return None
    is_doubtful = any(flag.startswith(BAD_TIMES) for flag in trace.manifest.flags)
    return job if is_whole and not is_doubtful else None


def may_score(entry: Entry, first: RunManifest, later: RunManifest) -> bool:
    """Return true if a later run made the change that was asked for, by its settings.

    It began after the prediction was made, so the prediction cannot rest on it.
    """
    if later.created_ns <= max(entry.made_ns, entry.created_ns):
        return False
    if later.state is not RunState.COMPLETE:
        return False
    return is_change_made(entry.question, first, later)


def is_change_made(question: Mapping[str, Any], first: RunManifest, later: RunManifest) -> bool:
    """Return true if a later run is the same job, but for the change that was asked for."""
    kind, value = str(question.get("kind")), question.get("value")
    others = other_differences(kind, first, later)
    if kind == WITHOUT:  # a fix may change settings of all kinds, but not the work itself
        return not any(each.name.startswith(WORK) for each in others)
    if others or find_script(first) != find_script(later):
        return False
    batch = {each.name for each in join_config(first, later)} & CHANGES[BATCH]
    made = {
        AMP: is_mixed(later) and not is_mixed(first),
        BATCH: bool(batch),
        DALI: uses_dali(later) and not uses_dali(first),
        RANKS: later.world_size == value,
        WORKERS: later.config.get("workers") == value,
    }
    return made.get(kind, False)


def has_effect(question: Mapping[str, Any], job: Job, samples: float) -> bool:
    """Return true if what the settings do not show is true of a run as well."""
    from profkit.explain.predict.alone import is_absent

    kind, cause = question.get("kind"), str(question.get("cause"))
    if kind == RANKS and samples:
        return math.isclose(samples, job.samples, rel_tol=MOST_OTHER_SAMPLES)
    if kind == BATCH:
        return job.evidence.step_samples == question.get("value")
    if kind == WITHOUT:
        return is_absent(job, cause)
    return True
