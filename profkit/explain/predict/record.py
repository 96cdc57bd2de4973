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

from profkit.explain.predict.prediction import WITH_BASE, Prediction
from profkit.trace import Trace
from profkit.vocab import RECORD

SHORTEST_NS, MOST_NS = 1, 2**63
"""A step takes a nanosecond at least, and no time of a run is longer than an integer holds."""

MOST_LINES = 20_000
"""Only the last lines of a larger file are read."""


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
    """When the run began that the prediction is about."""
    made_ns: int
    base: tuple[str, int] | None = None
    """The name and the beginning of the other run that the prediction rests on."""
    samples: float = 0.0
    """Samples of all ranks per step of the changed job; 0 if that is not known."""
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
    conclusive: int
    """Those that were scored and had called themselves conclusive. The figures are about these."""
    median_error: float | None
    """Of the sizes of the errors, as shares of the measured steps."""
    inside: float | None
    """The share of measured steps inside the intervals."""
    half_width: float | None
    """The median of half the interval, as a share of the predicted step."""


def record_file(run: Path, configured: Path | None = None) -> Path:
    """Return the file for the predictions of a run: next to it, unless one is configured."""
    return configured or run.resolve().parent / RECORD


def keep(prediction: Prediction, trace: Trace, path: Path, base: Trace | None = None) -> str:
    """Add a prediction to the record; return why it was not kept, or nothing.

    `base` is the other run that answers to some questions rest on.
    """
    step, question = prediction.step_ns, prediction.question
    if step is None or step.low is None or step.high is None:
        return ""
    asked = {"kind": question.kind, "value": question.value, "cause": question.cause}
    known = f"{trace.name} {trace.manifest.created_ns} {json.dumps(asked, sort_keys=True)}"
    rests = {}
    if base is not None and question.kind in WITH_BASE:
        rests = {"base": base.name, "base_created_ns": base.manifest.created_ns}
        known += f" {base.name} {base.manifest.created_ns}"
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
        "samples": prediction.samples,
        **rests,
    }
    return append(path, line)


def append(path: Path, line: Mapping[str, Any]) -> str:
    """Add a line to the record; return why that failed, or nothing."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        return f"the prediction is not in the record: {path}: {error.strerror}"
    return ""


def read_record(path: Path) -> tuple[Entry, ...]:
    """Return a file's predictions in their order; of equal ones, the last without a score."""
    found: dict[str, Entry] = {}
    for line in read_lines(path):
        try:
            if "scored" in line:
                entry = _scored(found[str(line["scored"])], line)
            else:
                entry = _read_entry(line)
        except (KeyError, TypeError, ValueError):
            continue
        if entry.measured_ns is not None or not _is_scored(found.get(entry.key)):
            found[entry.key] = entry
    return tuple(found.values())


def _is_scored(entry: Entry | None) -> bool:
    return entry is not None and entry.measured_ns is not None


def _read_entry(line: Mapping[str, Any]) -> Entry:
    question, base, samples = dict(line["question"]), None, line.get("samples", 0.0)
    step, low, high = (_number(line[name]) for name in ("step_ns", "low_ns", "high_ns"))
    if not 0 <= low <= step <= high or step < SHORTEST_NS:
        raise ValueError("no step is like this")
    if "base" in line:
        base = (str(line["base"]), int(_number(line["base_created_ns"])))
    return Entry(
        str(line["prediction"]), str(line["run"]), str(question["kind"]), str(line["words"]),
        step, low, high, bool(line["conclusive"]), question,
        int(_number(line["run_created_ns"])), int(_number(line["at_ns"])), base, _number(samples),
    )  # fmt: skip


def _scored(entry: Entry, line: Mapping[str, Any]) -> Entry:
    """Return a prediction with its score, if the run of the score began after it was made."""
    measured, created_ns = _number(line["measured_ns"]), _number(line["run_created_ns"])
    if measured < SHORTEST_NS or created_ns <= entry.made_ns:
        return entry
    return dataclasses.replace(entry, scored_run=str(line.get("run", "")), measured_ns=measured)


def _number(value: object) -> int | float:
    """Return a number of a line; raise `ValueError` if it is none that a time can be."""
    if not isinstance(value, int | float) or not abs(value) < MOST_NS:
        raise ValueError(f"not a number: {type(value).__name__}")
    return value


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        if not path.is_file():  # to open a pipe waits for its writer
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for text in lines[-MOST_LINES:]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def calibrate(entries: Sequence[Entry]) -> tuple[Calibration, ...]:
    """Return how the predictions came out, by kind; the last row is about all of them."""
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry)
    rows = list(itertools.starmap(_calibrate, sorted(kinds.items())))
    return (*rows, _calibrate("all", entries))


def _calibrate(kind: str, entries: Sequence[Entry]) -> Calibration:
    errors, inside, widths, scored = [], [], [], 0
    for entry in entries:
        scored += entry.measured_ns is not None
        if entry.error is not None and entry.conclusive:
            errors.append(abs(entry.error))
            inside.append(bool(entry.inside))
            widths.append((entry.high_ns - entry.low_ns) / 2 / entry.step_ns)
    if not errors:
        return Calibration(kind, len(entries), scored, 0, None, None, None)
    return Calibration(
        kind,
        len(entries),
        scored,
        len(errors),
        float(np.median(errors)),
        float(np.mean(inside)),
        float(np.median(widths)),
    )
