"""Processes outside the run take the processors: neither its ranks nor their workers.

Only phases that compute are judged: outside all phases, the job itself may write or wait.
"""

from __future__ import annotations

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.costs import INPUT
from profkit.explain.evidence_counters import Load
from profkit.explain.ledger import sum_rows
from profkit.explain.rules._input import MIN_OTHER_CORES, waits_for_cores
from profkit.explain.rules.base import Case, Cause, from_to, grew, in_time, trains_on_host
from profkit.text import significant
from profkit.vocab import Phase

MIN_SWITCHES_RATIO = 1.2
MIN_SWITCHES_PER_S = 10.0
"""Threads that compete for a core lose it more often than this, and more often than before."""

MAX_EXCHANGE_RATIO = 1.1
"""Other messages than these take another time by themselves."""

MIN_WORK_RATIO = 1.1
"""Threads that share a core's units take more processor time for the same work."""

_REMEDY = (
    "see what else runs there (top), and give the job cores of its own (taskset, cgroups, an "
    "exclusive allocation); then measure both sides again"
)
EXPLAINS: tuple[str, ...] = ("optimizer_unfused", "exposed_communication")
EXPLAINS_WITH_INPUT = (*EXPLAINS, "input_bound", "input_stalls")


def find(case: Case) -> Cause | None:
    before, after = case.before.load, case.after.load
    if before is None or after is None or not after.full:
        return None
    if before.others is None or after.others is None:
        return None
    name, rows, explains = "computing", [*COMPUTE], EXPLAINS
    if waits_for_cores(case):
        name, rows, explains = "computing and input", [*COMPUTE, INPUT], EXPLAINS_WITH_INPUT
    if trains_on_host(case) and _sends_as_much(case):
        name, rows = f"{name}, and the exchange,", [*rows, Phase.ALLREDUCE.value]
    row = sum_rows(case.ledger, "work", rows)
    if not grew(row, case.ledger) or after.others < before.others + MIN_OTHER_CORES:
        return None
    if not _is_held_up(case, before, after):
        return None
    was, now = in_time(case.ledger, before.others, after.others)
    evidence = (
        f"{name} went from {from_to(row, case.ledger)} per step while processes outside the run "
        f"went from {significant(was, 2)} to {significant(now, 2)} cores "
        f"of {significant(after.cores, 2)}"
    )
    return Cause.from_row("host_busy", row, case.ledger, evidence, _REMEDY, explains=explains)


def _sends_as_much(case: Case) -> bool:
    """Return true if both runs exchange the same gradients in as many messages."""
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None:
        return False
    sent = [each.messages * each.message_bytes for each in (before, after)]
    counts = [before.messages, after.messages]
    return all(max(pair) <= MAX_EXCHANGE_RATIO * min(pair) for pair in (sent, counts))


def _is_held_up(case: Case, before: Load, after: Load) -> bool:
    """Return true if ranks lose cores more often, or need more processor time per step.

    If neither is so, the ranks wait for something else than cores while others use them.
    """
    if before.switches_per_s is None or after.switches_per_s is None:
        return True
    least = max(MIN_SWITCHES_PER_S, MIN_SWITCHES_RATIO * before.switches_per_s)
    if after.switches_per_s > least:
        return True
    ledger = case.ledger
    known_ns = case.before.own_ns(ledger.batch_factor(case.before.step_samples))
    own_ns = case.after.own_ns(ledger.batch_factor(case.after.step_samples))
    return known_ns is None or own_ns is None or own_ns > MIN_WORK_RATIO * known_ns
