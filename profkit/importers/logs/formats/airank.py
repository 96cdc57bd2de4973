"""Grammar of AI-Rank's marks, which a benchmark prints between the lines of any tool.

    AI-Rank-log 1621335959.198982 avg_ips:76.19images/sec

The marks are read in every log. This grammar is for files that hold nothing else: such a run has
results and no steps.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_number

MARKER = "AI-Rank-log "
_RECORD = re.compile(
    r"AI-Rank-log \d{10}(?:\.\d{1,9})?,? "
    r"(load_data|test_begin|test_finish"
    r"|(?:eval_accuracy|target_quality_time|total_use_time|avg_ips)"
    r":(-?\d{1,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?))"
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


def read(line: Line, found: Found) -> None:
    """Read nothing: the marks are read in every log by `read_marks`."""


def read_marks(line: Line, found: Found) -> None:
    """Take the result of a mark, if the line has one; the last of each kind counts."""
    if MARKER not in line.text:
        return
    match = _RECORD.search(line.text)
    if match is None:
        return
    what = match[1].partition(":")[0]
    if what in {"eval_accuracy", "test_finish"}:
        found.evaluation_lines.append(line.number)
    value = as_number(match[2])
    if value is not None:
        found.add_result(line.number, what, value, _UNITS[what], _HOW.get(what, ""))


GRAMMAR = Grammar(
    name="airank",
    title="AI-Rank marks alone",
    framework="",
    marker=MARKER,
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.RUN,
)
