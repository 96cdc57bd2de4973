"""A line of the job's own code takes longer since a change inside a run."""

from __future__ import annotations

from profkit.analysis.captured import (
    Captured,
    CapturedLines,
    comparable_steps,
    compare_captured,
    view_before,
    view_captured,
)
from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import scale
from profkit.analysis.line_changes import LineChange
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.selection import steady_steps
from profkit.explain.evidence import Evidence
from profkit.explain.rules._late_phases import row_of
from profkit.explain.rules._outside import largest_place
from profkit.explain.rules.base import Case, Cause, cost, grew, here, in_time, share_of
from profkit.text import duration
from profkit.trace import Trace
from profkit.vocab import Phase

_REMEDY = "look at this line and at what it calls: its code, its inputs, and what it waits for"


def find(case: Case) -> Cause | None:
    """Compare the lines of the captured steps on both sides, if both are parts of one run.

    `settle` gives other causes in the same row priority: a capture holds two steps.
    """
    ledger = case.ledger
    found = lines_of(case)
    if found is None:
        return None
    for change in found.lines:
        row = ledger.find(row_of(change.phase))
        if change.difference.value <= 0 or row is None:
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
            f"{here(ledger)}in captured steps, {where}: {_say(case, found, change)}",
            _REMEDY,
            detail=change.place.words(found.after.code.folder),
            rows=(row.name,),
        )
    return None


def longest(case: Case, phase: str) -> tuple[str, float]:
    """Return the line of a phase in words, and by how much it is longer if this rule names it."""
    found = lines_of(case)
    grown = [] if found is None else [each for each in found.lines if each.difference.value > 0]
    for change in grown:
        if found is not None and change.phase == phase:
            named_ns = change.difference.value if change is grown[0] else 0.0
            return f"in captured steps, {_say(case, found, change)}", named_ns
    return "", 0.0


def _say(case: Case, found: CapturedLines, change: LineChange) -> str:
    """Return a line that takes longer, with its time on both sides in the order of time."""
    ledger = case.ledger
    first, then = in_time(ledger, change.base.value, change.target.value)
    before, after = in_time(ledger, found.before, found.after)
    place = change.place.words(found.after.code.folder)
    return (
        f"{place} took {duration(first)} per step in {before.words} "
        f"and {duration(then)} in {after.words}"
    )


def lines_of(case: Case) -> CapturedLines | None:
    """Return the lines of the phases that grew, from captured steps; `None` without captures."""
    if not (case.before.trace.is_part and case.after.trace.is_part):
        return None
    grown = {}
    for row in case.ledger.rows:
        if grew(row, case.ledger):
            phase = Phase.DATA.value if row.name == INPUT else row.name
            grown[phase] = cost(row, case.ledger).value
    sides = case.before, case.after
    early = int(_first_step(sides[1]) < _first_step(sides[0]))
    found = []
    for number, side in enumerate(sides):
        found.append(side.figure(captured_early if number == early else captured))
    return compare_captured(found[0], found[1], grown)


def captured(evidence: Evidence) -> Captured | None:
    """Return the captured steps of one side."""
    trace = evidence.trace
    return view_captured(trace, comparable_steps(trace, evidence.costs.selection))


def captured_early(evidence: Evidence) -> Captured | None:
    """Return the captured steps of the earlier side, or of the steps before it if it has none.

    Steps after its last used step are excluded, because the change may have begun in them.
    """
    trace, last = evidence.trace, int(evidence.used[-1]) if len(evidence.used) else -1
    steps = comparable_steps(trace, evidence.costs.selection)
    found = view_captured(trace, steps[steps <= last])
    if found is not None:
        return found
    run, at = Trace.open(trace.path), _first_step(evidence)
    return view_before(run, comparable_steps(run, steady_steps(run)), at, at)


def _first_step(evidence: Evidence) -> int:
    steps = evidence.trace.steps["step"].to_numpy()
    return int(steps.min()) if len(steps) else 0
