"""A log of more ranks is longer in all but its wait for data, as by an exchange."""

from __future__ import annotations

from profkit.explain.rules._logs import other_differences
from profkit.explain.rules.base import (
    Case,
    Cause,
    cost,
    grew,
    shift,
    stated_input_ns,
)
from profkit.frame.costs import DATA, REST
from profkit.text import duration, percent
from profkit.trace.sharing import AT_LEAST

MIN_SHARE_IN_LOGS = 0.5
"""In logs, everything but data must make at least this share of the gap."""

RANKS_KNOWN = "rows_speak_for_ranks"
"""The setting of a log's run that is missing if nothing tells the number of ranks."""


def find(case: Case) -> Cause | None:
    """Use what grew with the ranks of a log and is not data; cells do the rest."""
    ledger, row = case.ledger, case.ledger.find(REST)
    ranks_known = True
    for each in (case.base, case.target):
        ranks_known &= RANKS_KNOWN in each.config and AT_LEAST not in each.config
    has_more_ranks = ranks_known and case.target.world_size > case.base.world_size
    if row is None or ledger.turned or not has_more_ranks:
        return None
    if not (grew(row, ledger) and grew(ledger.total, ledger)):
        return None
    data_ns = _added_input_ns(case)
    gap = cost(ledger.total, ledger)
    if data_ns is None or gap.value - data_ns < MIN_SHARE_IN_LOGS * gap.value:
        return None
    price, evidence = cost(row, ledger), ""
    ranks = f"with {case.base.world_size} to {case.target.world_size} ranks"
    if price.value > gap.value:
        price = gap
        evidence = (
            f"{ranks} the step is {duration(gap.value)} longer, though its wait for data is "
            f"{duration(-data_ns)} shorter: that wait was at least partly hidden in the base, so "
            "everything but data grew by more than the gap, and the exchange costs at most the gap"
        )
    elif ledger.find(DATA) is None:
        price = shift(gap, -data_ns)
    if not evidence:
        evidence = (
            f"{ranks} everything but data adds {percent(price.value / gap.value, 0)} of the gap, "
            f"data {duration(data_ns)} per step"
        )
    evidence += "; a log cannot separate the exchange from waiting for other ranks' data"
    if others := other_differences(case):
        evidence += f"; part of it can be what else differs: {others}"
    remedy = "trace the job itself (profkit run) on all ranks: then the exchange is measured"
    share = price.value / gap.value
    return Cause("exposed_communication", price, share, evidence, remedy, rows=(REST,))


def _added_input_ns(case: Case) -> float | None:
    """Return the growth of the wait for data per step, by the rows or by what the logs state."""
    data_row = case.ledger.find(DATA)
    if data_row is not None:
        return cost(data_row, case.ledger).value
    before, after = stated_input_ns(case.base), stated_input_ns(case.target)
    if before is None or after is None:
        return None
    base_factor = case.ledger.batch_factor(case.before.step_samples)
    target_factor = case.ledger.batch_factor(case.after.step_samples)
    return after * target_factor - before * base_factor
