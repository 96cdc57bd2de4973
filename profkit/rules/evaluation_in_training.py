"""Evaluation, checkpoints or logging are charged to training."""

from __future__ import annotations

from profkit.analysis.costs import EVALUATION
from profkit.rules._base import Case, Finding, cost, from_to, grew, share_of_gap
from profkit.text import duration, plural
from profkit.vocab import Phase

_REMEDY = "evaluate and save less often, or beside the job; and leave it out of the throughput that is published"


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = ledger.find(Phase.OTHER.value)
    apart = next((each for each in ledger.target.apart if each.reason == EVALUATION), None)
    words = [f"{plural(apart.steps, 'step')} stand apart, and would add {duration(apart.excess_ns)} a step to the average"] if apart else []
    if row is not None and grew(row, ledger):
        evidence = "; ".join([f"evaluation, checkpoints and logging went from {from_to(row, ledger)} a step", *words])
        return Finding("evaluation_in_training", cost(row, ledger), share_of_gap(row, ledger), evidence, _REMEDY)
    return Finding("evaluation_in_training", None, None, words[0] + "; the rows are without them", _REMEDY) if words else None
