"""Batch normalisation exchanges its statistics between ranks, in each layer of each step."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import Case, Cause, Specific, from_to, grew, in_time
from profkit.text import significant
from profkit.vocab import Phase

MIN_ADDED_COLLECTIVES = 4.0
"""A step must have at least this many collectives without gradients more than the base's."""

_PHASES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.ALLREDUCE.value)
"""The phases in which statistics are exchanged."""

_REMEDY = (
    "synchronise batch normalisation only if a rank's batch is too small for statistics of its "
    "own; otherwise larger batches, or group normalisation"
)


def find(case: Case) -> Cause | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if after is None or case.base.world_size != case.target.world_size:
        return None
    known = 0.0
    if before is not None:
        known = before.others
    row = sum_rows(ledger, "forward, backward and exchange", _PHASES)
    if after.others < known + MIN_ADDED_COLLECTIVES or not grew(row, ledger):
        return None
    was, now = in_time(ledger, known, after.others)
    evidence = (
        f"{significant(was, 3)} collectives per step besides the gradients' own became "
        f"{significant(now, 3)}; "
        f"forward, backward and exchange went from {from_to(row, ledger)} per step"
    )
    return Cause.from_row("syncbn_cost", row, ledger, evidence, _REMEDY, specific=Specific.COUNT)
