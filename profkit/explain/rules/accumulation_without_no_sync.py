"""Gradients are accumulated over several backwards, and exchanged after each of them."""

from __future__ import annotations

from profkit.explain.rules._exchange import exchange_row
from profkit.explain.rules.base import Case, Finding, all_of, cost, from_to, grew, share_of_gap
from profkit.text import significant

MORE = 1.5
"""Each bucket travels this many times as often in a step as the base's."""

_REMEDY = "exchange once a step: wrap all but the last backward in model.no_sync()"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not before.rounds or after.rounds < MORE * before.rounds:
        return None
    row = exchange_row(ledger)
    if not grew(row, ledger):
        return None
    evidence = (
        f"each bucket travels {significant(after.rounds, 2)} times a step, {significant(before.rounds, 2)} in the base; "
        f"backward and exchange went from {from_to(row, ledger)} a step"
    )
    return Finding(
        "accumulation_without_no_sync",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("exposed_communication", "late_rank", "launch_bound"),
    )
