"""Another Python thread holds the interpreter's lock while the loop needs it."""

from __future__ import annotations

from profkit.explain.ledger import Verdict, judge, sum_rows
from profkit.explain.rules._threads import uses_python_threads
from profkit.explain.rules.base import WORK, Case, Cause, Specific, from_to, grew, in_time
from profkit.frame.costs import INPUT
from profkit.text import significant

_REMEDY = (
    "move the thread's work into a process of its own (multiprocessing), or into calls that "
    "release the interpreter's lock"
)


def find(case: Case) -> Cause | None:
    """Return what the rows grew by in which the loop runs Python."""
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or not uses_python_threads(before, after):
        return None
    names, base_ns = [], ledger.total.base.value
    for each in ledger.rows:
        if each.name in (*WORK, INPUT) and judge(each.delta, base_ns) is Verdict.REGRESSION:
            names.append(each.name)
    row = sum_rows(ledger, "the loop", names)
    if not names or not grew(row, ledger):
        return None
    was, now = in_time(ledger, before.python_threads or 0.0, after.python_threads or 0.0)
    evidence = (
        f"{', '.join(names)} went from {from_to(row, ledger)} per step while Python threads other "
        f"than the main one went from {significant(was, 2)} to {significant(now, 2)} "
        f"cores{after.where}; Python runs one thread at a time"
    )
    return Cause.from_row(
        "interpreter_lock", row, ledger, evidence, _REMEDY, specific=Specific.LOCK
    )
