"""Evaluation, checkpoints or logging are charged to training."""

from __future__ import annotations

from profkit.analysis.costs import EVALUATION, RunCosts
from profkit.explain.rules.base import Case, Finding, cost, from_to, grew, is_material, share_of_gap
from profkit.text import duration, plural
from profkit.vocab import Phase

FAR_MORE = 2.0
"""How many times the base's the steps must add that stand apart: which of them are long enough for that is chance."""

_REMEDY = "evaluate and save less often, or beside the job; and leave it out of the throughput that is published"


def find(case: Case) -> Finding | None:
    """By the phase's row; what is so rare that it stands apart costs nothing there, and is said where the base has less of it."""
    ledger = case.ledger
    row = ledger.find(Phase.OTHER.value)
    steps, excess = _apart(ledger.target)
    words = (
        [
            f"{plural(steps, 'step')} stand apart, and would add {duration(excess)} a step to the average"
        ]
        if steps
        else []
    )
    if row is not None and grew(row, ledger):
        named = (f"{name} {duration(ns)} a step" for name, ns in case.after.beside.items())
        evidence = "; ".join(
            [
                f"evaluation, checkpoints and logging went from {from_to(row, ledger)} a step",
                *named,
                *words,
            ]
        )
        return Finding(
            "evaluation_in_training",
            cost(row, ledger),
            share_of_gap(row, ledger),
            evidence,
            _REMEDY,
        )
    known = _apart(ledger.base)[1]
    if not words or not is_material(excess - known, ledger) or excess < FAR_MORE * known:
        return None
    return Finding(
        "evaluation_in_training", None, None, words[0] + "; the rows are without them", _REMEDY
    )


def _apart(costs: RunCosts) -> tuple[int, float]:
    """How many steps stand apart for evaluation, and what they would add to each step of the run."""
    found = next((each for each in costs.apart if each.reason == EVALUATION), None)
    return (found.steps, found.excess_ns) if found else (0, 0.0)
