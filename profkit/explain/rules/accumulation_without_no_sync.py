"""Gradients are accumulated over several backwards, and exchanged after each of them."""

from __future__ import annotations

from profkit.explain.rules._exchange import exchange_row
from profkit.explain.rules.base import Case, Finding, from_to, grew
from profkit.text import significant

MIN_ROUNDS_RATIO = 1.5
"""Each bucket is exchanged at least this many times as often per step as in the base."""

EXPLAINS = ("exposed_communication", "late_rank", "launch_bound")
_REMEDY = "exchange once per step: wrap all but the last backward in model.no_sync()"


def find(case: Case) -> Finding | None:
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None or not before.rounds:
        return None
    row = exchange_row(case.ledger)
    if after.rounds < MIN_ROUNDS_RATIO * before.rounds or not grew(row, case.ledger):
        return None
    evidence = (
        f"each bucket is exchanged {significant(after.rounds, 2)} times per step, "
        f"{significant(before.rounds, 2)} in the base; "
        f"backward and exchange went from {from_to(row, case.ledger)} per step"
    )
    return Finding.from_row(
        "accumulation_without_no_sync", row, case.ledger, evidence, _REMEDY, explains=EXPLAINS
    )
