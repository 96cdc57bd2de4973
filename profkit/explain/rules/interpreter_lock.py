"""Another Python thread of the process holds the interpreter's lock while the loop needs it."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.explain.ledger import Verdict, judge, sum_rows
from profkit.explain.rules.base import WORK, Case, Cause, from_to, grew, in_time
from profkit.explain.rules.thread_oversubscription import is_oversubscribed
from profkit.text import significant

MIN_ADDED_CORES = 0.2
"""Threads can be in the loop's way if they use at least this many cores more than the base's."""

EXPLAINS = (
    "optimizer_unfused",
    "host_busy",
    "loader_contention",
    "input_bound",
    "input_stalls",
    "time_outside_phases",
)
_REMEDY = (
    "move the thread's work into a process of its own (multiprocessing), or into calls that "
    "release the interpreter's lock"
)


def find(case: Case) -> Cause | None:
    """Return what the rows grew by in which the loop runs Python."""
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None:
        return None
    known, now_used = before.python_threads, after.python_threads
    if known is None or now_used is None:
        return None
    if now_used < known + MIN_ADDED_CORES or is_oversubscribed(before, after):
        return None
    names, base_ns = [], ledger.total.base.value
    for each in ledger.rows:
        if each.name in (*WORK, INPUT) and judge(each.delta, base_ns) is Verdict.REGRESSION:
            names.append(each.name)
    row = sum_rows(ledger, "the loop", names)
    if not names or not grew(row, ledger):
        return None
    was, now = in_time(ledger, known, now_used)
    evidence = (
        f"{', '.join(names)} went from {from_to(row, ledger)} per step while Python threads other "
        f"than the main one went from {significant(was, 2)} to {significant(now, 2)} cores in each "
        "rank; Python runs one thread at a time"
    )
    return Cause.from_row("interpreter_lock", row, ledger, evidence, _REMEDY, explains=EXPLAINS)
