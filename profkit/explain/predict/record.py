"""The record of predictions: a file of lines next to the runs, and how they came out.

A line is a prediction, or the score of an earlier one. Lines are only ever added, and a line that
cannot be read is skipped. The record must never make a command fail.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.config_join import join_config
from profkit.errors import ProfkitError
from profkit.explain.predict.job import Job, read_job
from profkit.explain.predict.other_runs import CHANGES, WORK, other_differences
from profkit.explain.predict.prediction import BATCH, RANKS, WITHOUT, WORKERS, Prediction
from profkit.trace import RunManifest, Trace
from profkit.trace.folders import find_runs
from profkit.vocab import RECORD, RunState

MOST_LINES = 20_000
"""Only the last lines of a larger file are read."""

MOST_RUNS, MOST_WAITING = 50, 50
"""The newest runs of a folder that are compared with the newest predictions without a score."""


@dataclass(frozen=True)
class Entry:
    """A prediction of the record, and its score if a later run matched it."""

    key: str
    run: str
    kind: str
    words: str
    step_ns: float
    low_ns: float
    high_ns: float
    conclusive: bool
    question: Mapping[str, Any]
    created_ns: int
    scored_run: str = ""
    measured_ns: float | None = None

    @property
    def error(self) -> float | None:
        """The prediction minus the measured step, as a share of it."""
        return self.step_ns / self.measured_ns - 1 if self.measured_ns else None

    @property
    def inside(self) -> bool | None:
        if self.measured_ns is None:
            return None
        return self.low_ns <= self.measured_ns <= self.high_ns


@dataclass(frozen=True)
class Calibration:
    """Outcome of the predictions of one kind."""

    kind: str
    made: int
    scored: int
    median_error: float | None
    """Of the sizes of the errors, as shares of the measured steps."""
    inside: float | None
    """The share of measured steps inside the intervals."""
    half_width: float | None
    """The median of half the interval, as a share of the predicted step."""


def record_file(run: Path, configured: Path | None = None) -> Path:
    """Return the file for the predictions of a run: next to it, unless one is configured."""
    return configured or run.resolve().parent / RECORD


def keep(prediction: Prediction, trace: Trace, path: Path) -> str:
    """Add a prediction to the record; return why it was not kept, or nothing."""
    step, question = prediction.step_ns, prediction.question
    if step is None or step.low is None or step.high is None:
        return ""
    asked = {"kind": question.kind, "value": question.value, "cause": question.cause}
    known = f"{trace.name} {trace.manifest.created_ns} {json.dumps(asked, sort_keys=True)}"
    line = {
        "prediction": hashlib.sha256(known.encode()).hexdigest()[:16],
        "run": trace.name,
        "run_created_ns": trace.manifest.created_ns,
        "at_ns": time.time_ns(),
        "question": asked,
        "words": question.words,
        "step_ns": step.value,
        "low_ns": step.low,
        "high_ns": step.high,
        "conclusive": prediction.conclusive,
    }
    return _append(path, line)


def _append(path: Path, line: Mapping[str, Any]) -> str:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        return f"the prediction is not in the record: {path}: {error.strerror}"
    return ""


def read_record(path: Path) -> tuple[Entry, ...]:
    """Return the predictions of a file in their order; of equal ones, the last."""
    found: dict[str, Entry] = {}
    scores: dict[str, Mapping[str, Any]] = {}
    for line in read_lines(path):
        try:
            if "scored" in line:
                scores[str(line["scored"])] = line
                continue
            key = str(line["prediction"])
            question = dict(line["question"])
            times = float(line["step_ns"]), float(line["low_ns"]), float(line["high_ns"])
            found[key] = Entry(
                key, str(line["run"]), str(question["kind"]), str(line["words"]), *times,
                bool(line["conclusive"]), question, int(line["run_created_ns"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            continue
    entries = []
    for key, entry in found.items():
        score = scores.get(key, {})
        measured = score.get("measured_ns")
        if isinstance(measured, int | float) and measured > 0:
            run = str(score.get("run", ""))
            scored = dataclasses.replace(entry, scored_run=run, measured_ns=float(measured))
            entries.append(scored)
        else:
            entries.append(entry)
    return tuple(entries)


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for text in lines[-MOST_LINES:]:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def score_record(path: Path, folder: Path, only: Path | None = None) -> tuple[Entry, ...]:
    """Score the predictions that a run of the folder matches by now; return the whole record.

    `only` is the one run that is compared with them; otherwise these are the newest.
    """
    entries = read_record(path)
    waiting = [entry for entry in entries if entry.measured_ns is None][-MOST_WAITING:]
    if not waiting:
        return entries
    manifests: dict[Path, RunManifest] = {}
    runs = [only] if only is not None else find_runs(folder)[: -MOST_RUNS - 1 : -1]
    for run in runs:
        manifest = _manifest_of(run)
        if manifest is not None:
            manifests[run] = manifest
    jobs: dict[Path, Job | None] = {}
    for entry in waiting:
        first = _manifest_of(folder / Path(entry.run).name)
        if first is None or first.created_ns != entry.created_ns:
            continue
        for run in sorted(manifests, key=lambda each: manifests[each].created_ns):
            if not may_score(entry, first, manifests[run]):
                continue
            if run not in jobs:
                jobs[run] = open_run(run)
            job = jobs[run]
            if job is not None and has_effect(entry.question, job):
                line = {"scored": entry.key, "run": run.name, "at_ns": time.time_ns()}
                _append(path, {**line, "measured_ns": float(job.now_ns.value)})
                break
    return read_record(path)


def _manifest_of(run: Path) -> RunManifest | None:
    try:
        return RunManifest.read(run)
    except (ProfkitError, OSError):
        return None


def open_run(run: Path) -> Job | None:
    try:
        return read_job(Trace.open(run))
    except (ProfkitError, OSError, ValueError):
        return None  # a damaged run scores nothing


def may_score(entry: Entry, first: RunManifest, later: RunManifest) -> bool:
    """Return true if a later run made the change that was asked for, by its settings."""
    if later.created_ns <= entry.created_ns or later.state is not RunState.COMPLETE:
        return False
    return is_change_made(entry.question, first, later)


def is_change_made(question: Mapping[str, Any], first: RunManifest, later: RunManifest) -> bool:
    """Return true if a later run is the same job, but for the change that was asked for."""
    kind, value = str(question.get("kind")), question.get("value")
    others = other_differences(kind, first, later)
    if kind == WITHOUT:  # a fix may change settings of all kinds, but not the work itself
        return not any(each.name.startswith(WORK) for each in others)
    if others:
        return False
    changed = {each.name for each in join_config(first, later)}
    if kind == RANKS:
        return later.world_size == value
    if kind == WORKERS:
        return later.config.get("workers") == value
    return bool(changed & CHANGES.get(kind, frozenset()))


def has_effect(question: Mapping[str, Any], job: Job) -> bool:
    """Return true if what the settings do not show is true of a run as well."""
    from profkit.explain.predict.alone import ALONE, shown_alone

    kind, cause = question.get("kind"), str(question.get("cause"))
    if kind == BATCH:
        return job.evidence.step_samples == question.get("value")
    if kind == WITHOUT:
        # A run in which other causes take its place would be no fair comparison.
        return cause in ALONE and job.model is not None and not shown_alone(job, [cause])
    return True


def calibrate(entries: Sequence[Entry]) -> tuple[Calibration, ...]:
    """Return how the predictions came out, by kind; the last row is about all of them."""
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry)
    rows = list(itertools.starmap(_calibrate, sorted(kinds.items())))
    return (*rows, _calibrate("all", entries))


def _calibrate(kind: str, entries: Sequence[Entry]) -> Calibration:
    errors, inside, widths = [], [], []
    for entry in entries:
        if entry.error is not None and entry.conclusive:
            errors.append(abs(entry.error))
            inside.append(bool(entry.inside))
            widths.append((entry.high_ns - entry.low_ns) / 2 / entry.step_ns)
    if not errors:
        return Calibration(kind, len(entries), 0, None, None, None)
    return Calibration(
        kind,
        len(entries),
        len(errors),
        float(np.median(errors)),
        float(np.mean(inside)),
        float(np.median(widths)),
    )
