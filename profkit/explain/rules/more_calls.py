"""A step computes more often: more micro-batches, inner iterations or rollouts."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules._calls import enters_more
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    cost,
    from_to,
    grew,
    in_time,
    share_of,
)
from profkit.frame.estimate import scale
from profkit.text import amount

_REMEDY = (
    "compare how often a step computes: micro-batches, inner iterations, rollouts, models; if a "
    "step does more of the job's work, state it (--samples-per-step)"
)


def find(case: Case) -> Cause | None:
    """Look at the phases that are entered more often, and take longer about as much."""
    ledger, more = case.ledger, enters_more(case)
    if not more:
        return None
    names, words = [], []
    for each in more:
        first, then = in_time(ledger, each.before, each.after)
        names.append(each.name)
        words.append(f"{each.name} from {amount(first)} to {amount(then)} times")
    label = f"{' and '.join(names)} together" if len(names) > 1 else names[0]
    row = sum_rows(ledger, label, names)
    if not grew(row, ledger):
        return None
    expected_ns = sum(each.expected_ns for each in more)
    price = scale(cost(row, ledger), min(1.0, expected_ns / row.delta.value))
    return Cause(
        "more_calls",
        price,
        share_of(price.value, ledger),
        f"how often a step enters a phase went in {', in '.join(words)}; "
        f"{label} went from {from_to(row, ledger)} per step",
        _REMEDY,
        specific=Specific.COUNT,
        rows=tuple(names),
    )
