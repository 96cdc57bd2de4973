"""Gradients are accumulated over several backwards, and exchanged after each of them."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import (
    EXCHANGE,
    Case,
    Cause,
    Specific,
    from_to,
    grew,
    here,
    other_side,
)
from profkit.text import significant

MIN_ROUNDS_RATIO = 1.5
"""Each bucket is exchanged at least this many times as often per step as in the base."""

_REMEDY = "exchange once per step: wrap all but the last backward in model.no_sync()"


def find(case: Case) -> Cause | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not (before.messages and after.messages):
        return None
    known, rounds = before.messages / before.buckets, after.messages / after.buckets
    row = sum_rows(ledger, "backward and exchange", EXCHANGE)
    if rounds < MIN_ROUNDS_RATIO * known or not grew(row, ledger):
        return None
    evidence = (
        f"{here(ledger)}each bucket is exchanged {significant(rounds, 2)} times per step, "
        f"{significant(known, 2)} in the {other_side(ledger)}; "
        f"backward and exchange went from {from_to(row, ledger)} per step"
    )
    return Cause.from_row(
        "accumulation_without_no_sync", row, ledger, evidence, _REMEDY, specific=Specific.COUNT
    )
