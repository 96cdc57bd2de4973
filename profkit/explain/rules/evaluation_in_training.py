"""Evaluation, checkpoints or logging are counted as training time."""

from __future__ import annotations

from profkit.explain.ledger import Row
from profkit.explain.rules._other import OF_PIPELINE, growth_of
from profkit.explain.rules.base import (
    Case,
    Cause,
    cost,
    from_to,
    grew,
    here,
    is_material,
    share_of,
)
from profkit.frame.costs import EVALUATION, RunCosts
from profkit.text import duration, plural
from profkit.vocab import Phase

MIN_EXCESS_RATIO = 2.0
"""Excluded steps must add at least this many times what the base's add.

It is a matter of chance which steps are long enough to be excluded.
"""

_REMEDY = (
    "evaluate and save less often, or in the background; and exclude it from the throughput that "
    "you publish"
)


def find(case: Case) -> Cause | None:
    """Use the growth of the phase's row, or else the steps that are excluded from the rows.

    Excluded steps cost nothing in the rows. They are reported if the base has less of them.
    """
    ledger = case.ledger
    row = ledger.find(Phase.OTHER.value)
    steps, excess = _excluded(ledger.target)
    excluded = ""
    if steps:
        excluded = (
            f"{plural(steps, 'step')} excluded from the rows would add {duration(excess)} per step "
            "to the average"
        )
    if row is not None and grew(row, ledger):
        found = _find_in_rows(case, row, excluded)
        if found is not None:
            return found
    known = _excluded(ledger.base)[1]
    if not steps or not is_material(excess - known, ledger) or excess < MIN_EXCESS_RATIO * known:
        return None
    return Cause("evaluation_in_training", None, None, excluded, _REMEDY)


def _find_in_rows(case: Case, row: Row, excluded: str) -> Cause | None:
    """Return the cause with what the row grew by; a pipeline's schedule does not count."""
    ledger, activities = case.ledger, case.after.other_ns
    of_pipeline = [name for name in activities if name in OF_PIPELINE]
    if of_pipeline:
        growth = growth_of(case, activities.keys() - of_pipeline)
        if growth is None:
            return None
        price, went = growth.cost_ns, growth.describe(case)
    else:
        price, went = cost(row, ledger), f"from {from_to(row, ledger)} per step"
    words = [f"evaluation, checkpoints and logging went {went}"]
    for name, ns in activities.items():
        if name not in of_pipeline:
            words.append(f"{here(ledger)}{name} {duration(ns)} per step")
    if excluded:
        words.append(here(ledger) + excluded)
    return Cause(
        "evaluation_in_training",
        price,
        share_of(price.value, ledger),
        "; ".join(words),
        _REMEDY,
        rows=row.sums or (row.name,),
    )


def _excluded(costs: RunCosts) -> tuple[int, float]:
    """Return the steps excluded for evaluation, and the time they would add to each step."""
    for each in costs.apart:
        if each.reason == EVALUATION:
            return each.steps, each.excess_ns
    return 0, 0.0
