"""Processes outside the run take the processors: neither its ranks nor their workers.

Only phases that compute are judged: outside all phases, the job itself may write or wait.
"""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.explain.ledger import sum_rows
from profkit.explain.rules._input import MIN_OTHER_CORES, waits_for_cores
from profkit.explain.rules.base import COMPUTE, Case, Cause, from_to, grew, in_time
from profkit.text import significant

_REMEDY = (
    "see what else runs there (top), and give the job cores of its own (taskset, cgroups, an "
    "exclusive allocation); then measure both sides again"
)
EXPLAINS: tuple[str, ...] = ("optimizer_unfused",)
EXPLAINS_WITH_INPUT = (*EXPLAINS, "input_bound", "input_stalls")


def find(case: Case) -> Cause | None:
    before, after = case.before.load, case.after.load
    if before is None or after is None or not after.full:
        return None
    if before.others is None or after.others is None:
        return None
    name, rows, explains = "computing", [*COMPUTE], EXPLAINS
    if waits_for_cores(case):
        name, rows, explains = "computing and input", [*COMPUTE, INPUT], EXPLAINS_WITH_INPUT
    row = sum_rows(case.ledger, "work", rows)
    if not grew(row, case.ledger) or after.others < before.others + MIN_OTHER_CORES:
        return None
    was, now = in_time(case.ledger, before.others, after.others)
    evidence = (
        f"{name} went from {from_to(row, case.ledger)} per step while processes outside the run "
        f"went from {significant(was, 2)} to {significant(now, 2)} cores "
        f"of {significant(after.cores, 2)}"
    )
    return Cause.from_row("host_busy", row, case.ledger, evidence, _REMEDY, explains=explains)
