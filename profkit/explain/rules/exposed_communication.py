"""Gradients travel while nothing else is left to do."""

from __future__ import annotations

from profkit.analysis.costs import INPUT, REST
from profkit.analysis.exposed import WAITING
from profkit.explain.ledger import Row
from profkit.explain.rules.base import (
    Case,
    Finding,
    cost,
    from_to,
    grew,
    share_of_gap,
    stated_input_ns,
)
from profkit.text import duration, percent
from profkit.vocab import Phase

_REMEDY = "larger batches or gradient accumulation, smaller first buckets, and a look at the links (profkit ceilings); waiting for late ranks is told apart"


def find(case: Case) -> Finding | None:
    """From the exchange's own rows; in logs from what grew with the ranks and is not input."""
    row = case.ledger.find(Phase.ALLREDUCE.value)
    return _from_log(case) if row is None else _from_row(case, row)


def _from_row(case: Case, row: Row) -> Finding | None:
    ledger = case.ledger
    waiting = next((part for part in row.inside if part.name == WAITING), None)
    if not grew(row, ledger) or (waiting is not None and waiting.delta.value > row.delta.value / 2):
        return None
    parts = [f"{part.name} {from_to(part, ledger)}" for part in row.inside]
    evidence = "; ".join([f"exposed exchange went from {from_to(row, ledger)} a step", *parts])
    return Finding(
        "exposed_communication", cost(row, ledger), share_of_gap(row, ledger), evidence, _REMEDY
    )


def _from_log(case: Case) -> Finding | None:
    ledger, row = case.ledger, case.ledger.find(REST)
    if (
        row is None
        or case.target.world_size <= case.base.world_size
        or not grew(row, ledger)
        or not grew(ledger.total, ledger)
    ):
        return None
    input_ns = _input_added(case)
    share = (
        None
        if input_ns is None
        else 1 - input_ns / (ledger.total.delta.value * ledger.samples_per_step)
    )
    if share is None or share < 0.5:
        return None
    ranks = f"{case.base.world_size} to {case.target.world_size} ranks"
    evidence = (
        f"with {ranks} everything but input adds {percent(share, 0)} of the gap, input {duration(input_ns or 0.0)} a step; "
        "a log cannot tell exchange from waiting for other ranks' input"
    )
    return Finding(
        "exposed_communication",
        cost(row, ledger),
        share,
        evidence,
        "trace the job itself (profkit run), all ranks: then the exchange is seen",
    )


def _input_added(case: Case) -> float | None:
    """What input adds a step, by its row or by what the logs state of the whole run; `None` where nothing tells."""
    row = case.ledger.find(INPUT)
    if row is not None:
        return row.delta.value * case.ledger.samples_per_step
    before, after = stated_input_ns(case.base), stated_input_ns(case.target)
    return None if before is None or after is None else after - before
