"""Something else on the machine takes the processors: neither the ranks nor their workers."""

from __future__ import annotations

from profkit.rules._base import Case, Finding, compute_row, cost, from_to, grew, share_of_gap
from profkit.text import significant

MORE = 0.25
"""Others that use this many cores more than beside the base can be in the way."""

_REMEDY = "see what else runs there (top), and give the job cores of its own (taskset, cgroups, an exclusive allocation); then measure both sides again"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or before.others is None or after.others is None or not after.full:
        return None
    row = compute_row(ledger)
    if not grew(row, ledger) or after.others < before.others + MORE:
        return None
    evidence = (
        f"computing went from {from_to(row, ledger)} a step while processes that are none of the job's went from {significant(before.others, 2)} to "
        f"{significant(after.others, 2)} cores of {significant(after.cores, 2)}"
    )
    return Finding("host_busy", cost(row, ledger), share_of_gap(row, ledger), evidence, _REMEDY, takes=frozenset({"optimizer_unfused"}))
