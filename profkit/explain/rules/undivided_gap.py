"""The gap between two logs is in one row, because they do not say what a step waits for."""

from __future__ import annotations

from profkit.explain.rules._logs import other_differences
from profkit.explain.rules.base import Case, Cause, grew, stated_input_ns
from profkit.frame.costs import DATA, REST
from profkit.frame.notices import is_log
from profkit.text import duration, plural

_REMEDY = (
    "record the job itself (profkit run) on both sides, or print the wait for data with each line"
)


def find(case: Case) -> Cause | None:
    """Report what cannot be known, so that nobody takes one possible cause for the cause."""
    ledger = case.ledger
    if not (is_log(case.before.trace) and is_log(case.after.trace)):
        return None
    if ledger.find(DATA) is not None or not grew(ledger.find(REST), ledger):
        return None
    waits = [stated_input_ns(case.base), stated_input_ns(case.target)]
    more_ranks = case.target.world_size > case.base.world_size
    if None not in waits and more_ranks:
        return None  # the exchange is the likely cause, and named
    names = (case.base_name, case.target_name)
    silent = [name for name, wait in zip(names, waits, strict=True) if wait is None]
    if not silent:
        shown = " and ".join(duration(wait or 0.0) for wait in waits)
        evidence = (
            f"the logs state waits for data of {shown} per step, and divide the rest no further"
        )
    else:
        who = "neither log states"
        if len(silent) == 1:
            who = f"{silent[0]} does not state"
        possible = "the data and the computing itself"
        if more_ranks:
            ranks = plural(case.target.world_size, "rank")
            possible = f"the data, the exchange between {ranks} and waiting for late ones"
        evidence = f"{who} the wait for data, so {possible} cannot be told apart"
    if others := other_differences(case):
        evidence += f"; what else differs can be part of it: {others}"
    return Cause("undivided_gap", None, None, evidence, _REMEDY)
