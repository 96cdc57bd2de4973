"""Grammar of MLPerf training results without other step lines.

    :::MLLOG {..., "key": "tracked_stats", "value": {"throughput": 1.9589}, "metadata": {...}}
    :::MLLOG {..., "value": {"train_step_time": 0.1868}, "metadata": {"step": 31.0, ...}}

The marks are read in every log, see `marks.py`. A record is a mean step time that the log states,
or a window between two marks. A window's time is that of its clock, unless the log states the
throughput for it. Some tools include evaluations in that: then these are `other` in its steps. Some
state the throughput of one card, next to the batch of one. Samples here are those of all cards.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.marks import Marks, number, read_event
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.stated_windows import use_statement
from profkit.importers.logs.text import Line

_RECORD = re.compile(
    r':::MLLOG \{.{1,200}"key": "(?:(?:eval_start|epoch_stop|block_stop)"|tracked_stats", "value": '
    r'\{"(?:train_step_time|throughput)")|:::MLPv0.{1,400}\) (?:eval_start|epoch_stop|train_epoch)'
)
_TOO_LONG = 1.5
"""Steps that would take this many times the time that passed are samples."""


def read(line: Line, found: Found) -> None:
    event = read_event(line, found)
    if event is None:
        return
    marks, key, value, more = event
    memory = found.memory
    if key == "run_start":
        memory.update(first=len(found.records), windows=0, stated=None, states_windows=False)
    if "first" not in memory:
        return
    if key == "tracked_stats" and isinstance(value, dict):
        step, step_s = number(more, "step"), number(value, "train_step_time")
        if step_s and step is not None:
            at, loss = (more["time_s"], int(step)), number(value, "reduced_train_loss")
            _add_steps(line, found, marks, at, step_s, loss)
        if throughput := number(value, "throughput"):
            memory["stated"] = throughput, more["time_s"]
    _add_windows(line, found, marks)
    use_statement(line, found, marks)


def _add_steps(
    line: Line, found: Found, marks: Marks, at: tuple[float, int], step_s: float, loss: float | None
) -> None:
    """Take a mean over the steps since the line before; they count from 0, samples from 1."""
    found.memory["has_steps"], (time_s, step) = True, at
    last = found.records[-1].step if len(found.records) > found.memory["first"] else -1
    batch = marks.counts.get("global_batch_size")
    if "counts_samples" not in found.memory:
        passed_s = time_s - marks.began_s
        found.memory["counts_samples"] = bool(batch) and step * step_s > _TOO_LONG * passed_s
    if batch and found.memory["counts_samples"]:
        step = round(step / batch) - 1
    if step > last:
        found.add_record(line, step, time_s=time_s, step_s=step_s, loss=loss, samples=batch,
                         steps=step - last)  # fmt: skip


def _add_windows(line: Line, found: Found, marks: Marks) -> None:
    """Take the windows that ended since the line before as records of whole steps."""
    batch = marks.counts.get("global_batch_size")
    new = marks.windows[found.memory["windows"] :]
    found.memory["windows"] = len(marks.windows)
    if not batch or found.memory.get("has_steps"):
        return
    for window in new:
        steps = max(1, round(window.samples / batch))
        last = found.records[-1].step if len(found.records) > found.memory["first"] else -1
        step_s = window.seconds * batch / window.samples
        found.add_record(line, last + steps, time_s=window.end_s, step_s=step_s,
                         samples=batch, steps=steps)  # fmt: skip


GRAMMAR = Grammar(
    name="mlperf",
    title="MLPerf training (MLLOG)",
    framework="",
    marker=":::ML",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.WINDOW,
    restarts_each_epoch=False,
    states_windows=True,
    evaluates_apart=True,
    batch_in_name=False,
)
