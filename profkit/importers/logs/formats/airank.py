"""AI-Rank's marks: a benchmark's own results, printed between the lines of whatever tool trains.

They are read in every log. As a grammar of its own this one is for files that hold nothing else:
a run of it has results and no steps.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_number

MARKER = "AI-Rank-log "
_VALUE = r"(-?\d{1,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?)"
_MARK = re.compile(
    rf"AI-Rank-log \d{{10}}(?:\.\d{{1,9}})?,? (load_data|test_begin|test_finish|(?:eval_accuracy|target_quality_time|total_use_time|avg_ips):{_VALUE})"
)
_UNITS = {
    "eval_accuracy": "",
    "target_quality_time": "s",
    "total_use_time": "s",
    "avg_ips": "images/s",
}
_HOW = {
    "avg_ips": "samples over time since the start, with start-up and evaluation",
    "target_quality_time": "until the target was met, with evaluation",
    "eval_accuracy": "a percentage or a fraction, by the tool",
}


def read_marks(line: Line, found: Found) -> None:
    """Take a mark's result, if the line has one; the last of each kind counts."""
    match = _MARK.search(line.text) if MARKER in line.text else None
    if match is None:
        return
    what = match[1].partition(":")[0]
    if what in {"eval_accuracy", "test_finish"}:
        found.evaluations.append(line.number)
    value = as_number(match[2])
    if value is not None:
        found.result(line.number, what, value, _UNITS[what], _HOW.get(what, ""))


def read(line: Line, found: Found) -> None:
    """Nothing more than the marks, which are read in every log."""


GRAMMAR = Grammar(
    name="airank",
    title="AI-Rank marks alone",
    framework="",
    marker=MARKER,
    pattern=_MARK,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.RUN,
)
