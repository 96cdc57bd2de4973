"""Evaluations and checkpoints in steps that the rows exclude and a throughput may not."""

from __future__ import annotations

from profkit.explain.rules.base import (
    Case,
    Cause,
    here,
    is_material,
)
from profkit.frame.costs import EVALUATION, RunCosts
from profkit.text import duration, plural

MIN_EXCESS_RATIO = 2.0
"""Excluded steps must add at least this many times what the base's add.

It is a matter of chance which steps are long enough to be excluded.
"""

_REMEDY = (
    "evaluate and save less often, or in the background; and exclude it from the throughput that "
    "you publish"
)


def find(case: Case) -> Cause | None:
    """Report the steps that are excluded from the rows, if the base has less of them.

    They cost nothing in the rows. What is left in the rows is a cell of the phase `other`.
    """
    ledger = case.ledger
    steps, excess = _excluded(ledger.target)
    known = _excluded(ledger.base)[1]
    if not steps or not is_material(excess - known, ledger) or excess < MIN_EXCESS_RATIO * known:
        return None
    evidence = (
        f"{here(ledger)}{plural(steps, 'step')} excluded from the rows would add "
        f"{duration(excess)} per step to the average"
    )
    return Cause("evaluation_in_training", None, None, evidence, _REMEDY)


def _excluded(costs: RunCosts) -> tuple[int, float]:
    """Return the steps excluded for evaluation, and the time they would add to each step."""
    for each in costs.apart:
        if each.reason == EVALUATION:
            return each.steps, each.excess_ns
    return 0, 0.0
