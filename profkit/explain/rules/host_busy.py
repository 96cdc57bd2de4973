"""Something else on the machine takes the processors: neither the ranks nor their workers."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.explain.ledger import sum_rows
from profkit.explain.rules._input import OTHERS, waits_for_cores
from profkit.explain.rules.base import (
    WORK,
    Case,
    Finding,
    all_of,
    cost,
    from_to,
    grew,
    share_of_gap,
)
from profkit.text import significant

_REMEDY = "see what else runs there (top), and give the job cores of its own (taskset, cgroups, an exclusive allocation); then measure both sides again"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if (
        before is None
        or after is None
        or before.others is None
        or after.others is None
        or not after.full
    ):
        return None
    workers_too = waits_for_cores(case)
    row = sum_rows(ledger, "work", (*WORK, INPUT) if workers_too else WORK)
    if not grew(row, ledger) or after.others < before.others + OTHERS:
        return None
    evidence = (
        f"computing{' and input' if workers_too else ''} went from {from_to(row, ledger)} a step while processes that are none of the job's went from "
        f"{significant(before.others, 2)} to {significant(after.others, 2)} cores of {significant(after.cores, 2)}"
    )
    taken = all_of("optimizer_unfused", *(("input_bound", "input_stalls") if workers_too else ()))
    return Finding(
        "host_busy", cost(row, ledger), share_of_gap(row, ledger), evidence, _REMEDY, takes=taken
    )
