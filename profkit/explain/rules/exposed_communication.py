"""Gradients are exchanged while nothing else is left to do."""

from __future__ import annotations

from profkit.analysis.costs import INPUT, REST
from profkit.analysis.device_times import PhaseClock
from profkit.analysis.exposed import WAITING
from profkit.explain.rules.base import (
    Case,
    Finding,
    cost,
    from_to,
    grew,
    stated_input_ns,
)
from profkit.text import duration, percent
from profkit.vocab import Phase

MAX_WAITING_SHARE = 0.5
"""If waiting for late ranks is more than this share of the growth, lateness is the cause."""

MIN_SHARE_IN_LOGS = 0.5
"""In logs, everything but input must make at least this share of the gap."""

_REMEDY = (
    "larger batches or gradient accumulation, smaller first buckets, and a look at the links "
    "(profkit ceilings); waiting for late ranks is reported separately"
)


def find(case: Case) -> Finding | None:
    """Use the rows of the exchange; in logs, what grew with the ranks and is not input."""
    ledger = case.ledger
    row = ledger.find(Phase.ALLREDUCE.value)
    if row is None:
        return _find_in_log(case)
    if not grew(row, ledger):
        return None
    words = [f"exposed exchange went from {from_to(row, ledger)} per step"]
    for part in row.inside:
        if part.name == WAITING and part.delta.value > MAX_WAITING_SHARE * row.delta.value:
            return None
        words.append(f"{part.name} {from_to(part, ledger)}")
    return Finding.from_row("exposed_communication", row, ledger, "; ".join(words), _REMEDY)


def _find_in_log(case: Case) -> Finding | None:
    ledger, row = case.ledger, case.ledger.find(REST)
    has_more_ranks = case.target.world_size > case.base.world_size
    if row is None or not has_more_ranks or not (grew(row, ledger) and grew(ledger.total, ledger)):
        return None
    input_row = ledger.find(INPUT)
    if input_row is not None:
        input_ns = input_row.delta.value * ledger.samples_per_step
    else:
        before, after = stated_input_ns(case.base), stated_input_ns(case.target)
        if before is None or after is None:
            return None
        input_ns = after - before
    share = 1 - input_ns / (ledger.total.delta.value * ledger.samples_per_step)
    if share < MIN_SHARE_IN_LOGS:
        return None
    source, more = "a log", ""
    if input_ns < 0:
        more = " (more than the gap, because input got shorter)"
    if case.after.costs.clock is PhaseClock.LAUNCH:
        source = "the host's clock"
    evidence = (
        f"with {case.base.world_size} to {case.target.world_size} ranks everything but input adds "
        f"{percent(share, 0)} of the gap{more}, input {duration(input_ns)} per step; "
        f"{source} cannot separate the exchange from waiting for other ranks' input"
    )
    remedy = "trace the job itself (profkit run) on all ranks: then the exchange is measured"
    if case.after.costs.clock is PhaseClock.LAUNCH:
        remedy = "record device times on all ranks: then the exchange is measured"
    return Finding("exposed_communication", cost(row, ledger), share, evidence, remedy)
