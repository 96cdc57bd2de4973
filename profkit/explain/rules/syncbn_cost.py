"""Batch normalisation exchanges its statistics between the ranks, in each layer of each step."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import Case, Finding, all_of, cost, from_to, grew, share_of_gap
from profkit.text import significant
from profkit.vocab import Phase

MORE = 4.0
"""This many collectives a step beside the gradients' own, more than the base has, are no accident."""

_WHERE = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.ALLREDUCE.value)
_REMEDY = "synchronise batch normalisation only where a rank's batch is too small for statistics of its own; else larger batches, or group normalisation"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    known = before.beside if before is not None else 0.0
    if (
        after is None
        or after.beside < known + MORE
        or case.base.world_size != case.target.world_size
    ):
        return None
    row = sum_rows(ledger, "forward, backward and exchange", _WHERE)
    if not grew(row, ledger):
        return None
    evidence = (
        f"{significant(known, 3)} collectives a step beside the gradients' own became {significant(after.beside, 3)}; "
        f"forward, backward and exchange went from {from_to(row, ledger)} a step"
    )
    return Finding(
        "syncbn_cost",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("exposed_communication", "late_rank", "launch_bound"),
    )
