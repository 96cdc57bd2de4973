"""Gradients are exchanged while nothing else is left to do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.config_join import NOT_SAID
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Row
from profkit.explain.rules.base import (
    Case,
    Cause,
    computing_factor,
    cost,
    differs,
    from_to,
    grew,
    here,
    shift,
    stated_input_ns,
    trains_on_host,
)
from profkit.frame.columns import durations, rows_of_rank
from profkit.frame.costs import INPUT, REST
from profkit.frame.exchange import exposed_windows
from profkit.frame.exposed import TRANSFER, WAITING
from profkit.frame.intervals import covered_each
from profkit.frame.pipelines import MESSAGES
from profkit.text import duration, percent
from profkit.trace.sharing import AT_LEAST
from profkit.vocab import Phase

MAX_WAITING_SHARE = 0.5
"""If waiting for late ranks is more than this share of the growth, lateness is the cause."""

MAX_RATIO_TO_BYTES = 1.5
"""An exchange that grew by at most this times the factor of its bytes has no cause of its own."""

MIN_RATIO_TO_COMPUTING = 1.5
"""On a full machine, the exchange must grow by more than this times the factor of computing."""

MIN_SHARE_IN_LOGS = 0.5
"""In logs, everything but input must make at least this share of the gap."""

MIN_SHARE_OF_MESSAGES = 0.5
"""If messages are a larger share of the exposed time, ranks wait for each other's stages."""

RANKS_KNOWN = "rows_speak_for_ranks"
"""The setting of a log's run that is missing if nothing tells the number of ranks."""

CONFOUNDERS = ("framework", "precision", "batch_size", "memory_format", "dali", "loader", "xla")
"""Settings that can make a step longer as well."""

_REMEDY = (
    "larger batches or gradient accumulation, smaller first buckets, and a look at the links "
    "(profkit ceilings)"
)
_REMEDY_IN_PIPELINE = (
    "stages that take equally long, more microbatches per step, or an interleaved schedule; a rank "
    "waits for what its neighbours compute"
)
_REMEDY_OF_LINKS = "the links between the stages of the pipeline (profkit ceilings)"
_WAITING_KNOWN = "; waiting for late ranks is reported separately"
_WAITING_UNKNOWN = "how much of it is waiting for late ranks is not known"


def find(case: Case) -> Cause | None:
    """Use the rows of the exchange; in logs, what grew with the ranks and is not input."""
    ledger = case.ledger
    row = ledger.find(Phase.ALLREDUCE.value)
    if row is None:
        return _find_in_log(case)
    if not grew(row, ledger) or _carries_more(case, row) or _lacks_cores(case, row):
        return None
    words = [f"exposed exchange went from {from_to(row, ledger)} per step"]
    for part in row.inside:
        if part.name == WAITING and part.delta.value > MAX_WAITING_SHARE * row.delta.value:
            return None
        words.append(f"{part.name} {from_to(part, ledger)}")
    remedy, in_messages = _REMEDY, case.after.figure(share_in_messages)
    if in_messages > MIN_SHARE_OF_MESSAGES:
        share = percent(in_messages, 0)
        words.append(f"{here(ledger)}{share} of it is in messages between stages of the pipeline")
        remedy = _REMEDY_IN_PIPELINE
        largest = max(row.inside, key=lambda part: part.delta.value, default=None)
        if largest is not None and largest.name == TRANSFER:
            remedy = _REMEDY_OF_LINKS
    if row.inside:
        remedy += _WAITING_KNOWN
    else:
        words.append(_WAITING_UNKNOWN)
    return Cause.from_row("exposed_communication", row, ledger, "; ".join(words), remedy)


def share_in_messages(evidence: Evidence) -> float:
    """Return the share of the exposed exchange that sends and receives take."""
    rows = evidence.select_used(evidence.trace.collectives)
    rows = rows.filter(pc.is_in(rows["op"].cast(pa.string()), pa.array(MESSAGES)))
    windows = exposed_windows(evidence.basis.spans, evidence.used).sort_by("start_ns")
    total = float(durations(windows).sum())
    if not rows.num_rows or not total:
        return 0.0
    inside = 0.0
    for rank in np.unique(rows["rank"].to_numpy()).tolist():
        own, exposed = rows_of_rank(rows, rank), rows_of_rank(windows, rank)
        sent = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        waited = exposed["start_ns"].to_numpy(), exposed["end_ns"].to_numpy()
        inside += float(covered_each(*sent, *waited).sum())
    return inside / total


def _carries_more(case: Case, row: Row) -> bool:
    """Return true if the exchange grew as its gradients did: the model is the cause."""
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None or not differs(case, "parameters_count"):
        return False
    known = before.messages * before.message_bytes
    if not known or row.base.value <= 0:
        return False
    ratio = after.messages * after.message_bytes / known
    return row.target.value <= MAX_RATIO_TO_BYTES * ratio * row.base.value


def _lacks_cores(case: Case, row: Row) -> bool:
    """Return true if the exchange of processors grew on a full machine about as computing did.

    Without a device, the ranks' processors send the messages, and wait for cores as well.
    """
    load = case.after.load
    if not trains_on_host(case) or (load is not None and not load.full):
        return False
    most = MIN_RATIO_TO_COMPUTING * computing_factor(case.ledger)
    return row.base.value > 0 and row.target.value <= most * row.base.value


def _find_in_log(case: Case) -> Cause | None:
    ledger, row = case.ledger, case.ledger.find(REST)
    ranks_known = True
    for each in (case.base, case.target):
        ranks_known &= RANKS_KNOWN in each.config and AT_LEAST not in each.config
    has_more_ranks = ranks_known and case.target.world_size > case.base.world_size
    if row is None or ledger.turned or not has_more_ranks:
        return None
    if not (grew(row, ledger) and grew(ledger.total, ledger)):
        return None
    input_ns = _added_input_ns(case)
    gap = cost(ledger.total, ledger)
    if input_ns is None or gap.value - input_ns < MIN_SHARE_IN_LOGS * gap.value:
        return None
    price, evidence = cost(row, ledger), ""
    ranks = f"with {case.base.world_size} to {case.target.world_size} ranks"
    if price.value > gap.value:
        price = gap
        evidence = (
            f"{ranks} the step is {duration(gap.value)} longer, though its wait for input is "
            f"{duration(-input_ns)} shorter: that wait was at least partly hidden in the base, so "
            "everything but input grew by more than the gap, and the exchange costs at most the gap"
        )
    elif ledger.find(INPUT) is None:
        price = shift(gap, -input_ns)
    if not evidence:
        evidence = (
            f"{ranks} everything but input adds {percent(price.value / gap.value, 0)} of the gap, "
            f"input {duration(input_ns)} per step"
        )
    evidence += "; a log cannot separate the exchange from waiting for other ranks' input"
    if others := other_differences(case):
        evidence += f"; part of it can be what else differs: {others}"
    remedy = "trace the job itself (profkit run) on all ranks: then the exchange is measured"
    share = price.value / gap.value
    return Cause("exposed_communication", price, share, evidence, remedy, rows=(REST,))


def _added_input_ns(case: Case) -> float | None:
    """Return the growth of the wait for input per step, by the rows or by what the logs state."""
    input_row = case.ledger.find(INPUT)
    if input_row is not None:
        return cost(input_row, case.ledger).value
    before, after = stated_input_ns(case.base), stated_input_ns(case.target)
    if before is None or after is None:
        return None
    base_factor = case.ledger.batch_factor(case.before.step_samples)
    target_factor = case.ledger.batch_factor(case.after.step_samples)
    return after * target_factor - before * base_factor


def other_differences(case: Case) -> str:
    """Return what both state, differs besides the ranks, and can change the time of a sample."""
    words = []
    for each in case.ledger.differences:
        if each.name in CONFOUNDERS and NOT_SAID not in {each.base, each.target}:
            words.append(f"{each.name} {each.base} and {each.target}")
    return ", ".join(words)
