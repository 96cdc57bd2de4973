"""A line of the job's own code takes longer since a change inside a run."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.line_changes import LineChange, compare_lines
from profkit.analysis.stacks import CodeView
from profkit.explain.evidence import Evidence
from profkit.explain.rules._late_phases import row_of
from profkit.explain.rules._outside import largest_place
from profkit.explain.rules.base import Case, Cause, cost, grew, here, in_time, share_of
from profkit.frame.costs import INPUT
from profkit.frame.estimate import scale
from profkit.frame.phases import UNKNOWN
from profkit.text import duration
from profkit.vocab import Phase

LEAST_SHARE = 0.25
"""A line is named if it makes at least this share of its phase's change."""

_REMEDY = "look at this line and at what it calls: its code, its inputs, and what it waits for"


def find(case: Case) -> Cause | None:
    """Compare the lines on both sides, if both are parts of one run with sampled stacks.

    `settle` gives other causes in the same row priority: a line is where the time is spent.
    """
    ledger = case.ledger
    for change in lines_of(case):
        row = ledger.find(row_of(change.phase))
        if row is None:
            continue
        whole = cost(row, ledger)
        price = scale(whole, min(1.0, change.difference.value / whole.value))
        where = change.phase
        if where == UNKNOWN:
            where = "outside all phases, from {} to {}".format(*largest_place(case)[0])
        return Cause(
            "slow_line",
            price,
            share_of(price.value, ledger),
            f"{here(ledger)}{where}: {_say(case, change)}",
            _REMEDY,
            detail=change.place.words(_folder(case)),
            rows=(row.name,),
        )
    return None


def longest(case: Case, phase: str) -> tuple[str, float]:
    """Return the line of a phase in words, and by how much it is longer if this rule names it."""
    grown = list(lines_of(case))
    for change in grown:
        if change.phase == phase:
            return _say(case, change), change.difference.value if change is grown[0] else 0.0
    return "", 0.0


def _say(case: Case, change: LineChange) -> str:
    """Return a line that takes longer, with its time on both sides in the order of time."""
    first, then = in_time(case.ledger, change.base.value, change.target.value)
    place = change.place.words(_folder(case))
    return f"{place} took {duration(first)} per step and then {duration(then)}"


def _folder(case: Case) -> str:
    code = code_of(case.after)
    return code.folder if code is not None else ""


def code_of(evidence: Evidence) -> CodeView | None:
    """Return the lines of one side."""
    return evidence.code


def lines_of(case: Case) -> Iterator[LineChange]:
    """Yield the lines that surely take longer, in the phases that grew."""
    before, after = case.before, case.after
    if not (before.trace.is_part and after.trace.is_part):
        return
    sides = code_of(before), code_of(after)
    if sides[0] is None or sides[1] is None:
        return
    grown = {}
    for row in case.ledger.rows:
        if grew(row, case.ledger):
            phase = Phase.DATA.value if row.name == INPUT else row.name
            grown[phase] = cost(row, case.ledger).value
    for change in compare_lines(sides[0], sides[1], same_code=True, only=grown).lines:
        by_ns = grown.get(change.phase, 0.0)
        is_named = change.is_sure and change.place.line and by_ns
        if is_named and change.difference.value >= LEAST_SHARE * by_ns:
            yield change
