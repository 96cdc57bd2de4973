"""The gap between two logs is in one row, because they do not say what a step waits for."""

from __future__ import annotations

from profkit.analysis.costs import INPUT, REST
from profkit.analysis.notices import is_log
from profkit.explain.rules.base import Case, Finding, grew, stated_input_ns
from profkit.explain.rules.exposed_communication import other_differences
from profkit.text import plural

_REMEDY = (
    "record the job itself (profkit run) on both sides, or print the wait for data with each line"
)


def find(case: Case) -> Finding | None:
    """Report what cannot be known, so that nobody takes one possible cause for the cause."""
    ledger = case.ledger
    if not (is_log(case.before.trace) and is_log(case.after.trace)):
        return None
    if ledger.find(INPUT) is not None or not grew(ledger.find(REST), ledger):
        return None
    silent = []
    for name, run in ((case.base_name, case.base), (case.target_name, case.target)):
        if stated_input_ns(run) is None:
            silent.append(name)
    if not silent:
        return None
    who = f"{silent[0]} does not state"
    if len(silent) > 1:
        who = "neither log states"
    causes = "the input and the computing itself"
    if case.target.world_size > case.base.world_size:
        causes = (
            f"the input, the exchange between {plural(case.target.world_size, 'rank')} and waiting "
            "for late ones"
        )
    evidence = f"{who} the wait for data, so {causes} cannot be told apart"
    if others := other_differences(case):
        evidence += f"; what else differs can be part of it: {others}"
    return Finding("undivided_gap", None, None, evidence, _REMEDY)
