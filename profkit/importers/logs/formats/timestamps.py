"""Grammar of trainers that print a step, its loss and the time of day, and no other time.

    2021-10-29 10:03:13,704 - train.py - INFO: Iter: 200; LR: 7.960e-06; loss: 0.5607

What passed between two lines is the time of the steps between them, with all that the job did then.
Lines of one moment are one record, as clocks may show whole seconds only.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.lines import NO_RANKS, NO_TRAINING
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line
from profkit.importers.logs.times import find_time
from profkit.importers.logs.values import Figures, read_figures

_RECORD = re.compile(
    r"(?i)\A(?=.{0,60}?\d\d:\d\d:\d\d)(?=.{0,400}?(?:step|iter|it\b|batch|update))(?=.{0,600}?loss)"
)
_LONGEST_S = 86_400.0
"""After a longer pause another job may have begun."""


def read_moment(text: str) -> tuple[Figures, float] | None:
    """Return the figures of a line with a step, a loss and a time of day, else null."""
    if not _RECORD.search(text) or (NO_TRAINING.search(text) and "train" not in text.lower()):
        return None
    figures, time_s = read_figures(text), find_time(text)
    if figures.step is None or figures.loss is None or figures.tells_time or time_s is None:
        return None
    return figures, time_s


def read(line: Line, found: Found) -> None:
    moment = read_moment(line.text)
    if moment is None:
        if NO_TRAINING.search(line.text):
            found.evaluation_lines.append(line.number)
        return
    (step, epoch, *_), time_s = moment
    last = found.memory.get("last")
    if last is not None and (epoch, step) == last[:2]:
        return
    found.memory["last"] = epoch, step, time_s
    before = found.memory.get("counted", last)
    if before is None or epoch != before[0] or (step or 0) <= (before[1] or 0):
        found.memory["counted"] = epoch, step, time_s
        return  # a first line ends no interval that is known
    passed_s, steps = time_s - before[2], (step or 0) - (before[1] or 0)
    if 0 < passed_s < _LONGEST_S:
        found.memory["counted"] = epoch, step, time_s
        loss = moment[0].loss
        found.add_record(line, step, epoch, time_s=time_s, step_s=passed_s / steps, steps=steps,
                         loss=loss, lr=moment[0].lr)  # fmt: skip


def settle(found: Found, grammar: Grammar) -> Grammar:
    """Say what such a log leaves open."""
    if found.records:
        found.warn(NO_RANKS, found.records[0].line)
    return grammar


GRAMMAR = Grammar(
    name="timestamps",
    title="a trainer's lines with the time of day",
    framework="",
    marker="",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.WINDOW,
    states_windows=True,
    warm_up_records=1,
    knows=read_moment,
    settle=settle,
)
