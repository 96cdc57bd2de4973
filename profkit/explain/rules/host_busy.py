"""Other processes take the processors: neither the ranks nor their loader workers.

Only phases that compute are judged: outside all phases, the job itself may write or wait. Work that
the job itself added is not their doing, nor is more than they can have made its threads wait.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from profkit.analysis.config_join import COMPUTE, NOT_SAID
from profkit.explain.evidence_counters import Load
from profkit.explain.ledger import Row, sum_rows
from profkit.explain.rules._calls import enters_more
from profkit.explain.rules._input import MIN_OTHER_CORES, waits_for_cores
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    from_to,
    grew,
    in_time,
    is_material,
    share_of,
    trains_on_host,
)
from profkit.explain.slowness import state_of, waited_ns
from profkit.frame.costs import DATA
from profkit.frame.estimate import scale
from profkit.text import duration, significant
from profkit.vocab import Phase

MIN_SWITCHES_RATIO = 1.2
MIN_SWITCHES_PER_S = 10.0
"""Threads that compete for a core lose it more often than this, and more often than before."""

MAX_EXCHANGE_RATIO = 1.1
"""Other messages than these take another time by themselves."""

MIN_SHARE_STARTED = 0.5
"""Processes that the ranks started are meant if they are this share of what was added."""

MIN_WORK_RATIO = 1.1
"""Threads that share a core's units take more processor time for the same work."""

_REMEDY = (
    "see what else runs there (top), and give the job cores of its own (taskset, cgroups, an "
    "exclusive allocation); then measure both sides again"
)
_REMEDY_STARTED = (
    "see what the ranks start beside themselves, and start less of it or give it cores of its own "
    "(taskset, cgroups); then measure both sides again"
)


def find(case: Case) -> Cause | None:
    before, after = case.before.load, case.after.load
    if before is None or after is None or not after.full:
        return None
    if before.others is None or after.others is None:
        return None
    name, rows = "computing", [*COMPUTE]
    if waits_for_cores(case):
        name, rows = "computing and data", [*COMPUTE, DATA]
    if trains_on_host(case) and _sends_as_much(case):
        name, rows = f"{name}, and the exchange,", [*rows, Phase.ALLREDUCE.value]
    row = sum_rows(case.ledger, "work", rows)
    if not grew(row, case.ledger) or after.others < before.others + MIN_OTHER_CORES:
        return None
    if not _is_held_up(case, before, after):
        return None
    was, now = in_time(case.ledger, before.others, after.others)
    evidence = (
        f"{name} went from {from_to(row, case.ledger)} per step while {_whose(after)} "
        f"went from {significant(was, 2)} to {significant(now, 2)} cores "
        f"of {significant(after.cores, 2)}{after.where}"
    )
    added, remedy = after.others - before.others, _REMEDY
    if after.started - before.started >= MIN_SHARE_STARTED * added:
        remedy = _REMEDY_STARTED
    cause = Cause.from_row(
        "host_busy", row, case.ledger, evidence, remedy, specific=Specific.MACHINE
    )
    return _without_own_work(case, row, dataclasses.replace(cause, needs_processor=True))


def _waits_longer(case: Case, after: Load) -> bool:
    """Return true if the threads of ranks were ready and had no core for longer per step."""
    was = case.before.counters.rate("process", "cpu_wait_seconds")
    now = case.after.counters.rate("process", "cpu_wait_seconds")
    if was is None or now is None or after.others is None:
        return False
    longer_ns = waited_ns(case.ledger, now.value, was.value, after.others)
    return is_material(longer_ns * case.ledger.samples_per_step, case.ledger)


def _whose(load: Load) -> str:
    """Return which processes use the cores."""
    if load.started < MIN_OTHER_CORES:
        return "processes outside the run"
    started = f"with up to {significant(load.started, 2)} cores of those that the ranks started"
    return f"processes other than the ranks, {started},"


class _OwnWork(NamedTuple):
    """The processor time that the job used per step before and after, in ns."""

    before_ns: float
    after_ns: float

    def added_ns(self, row: Row) -> float:
        """Return how much longer the row is for it, in ns per sample and rank."""
        longer_ns = row.base.value * (self.after_ns / self.before_ns - 1)
        return min(max(0.0, longer_ns), row.delta.value)


def _own_work(case: Case) -> _OwnWork | None:
    """Return the job's own processor time, if something says that a sample is another work.

    Otherwise more of it is taken for the sharing of caches and of a core's units.
    """
    ledger = case.ledger
    is_other = bool(enters_more(case))
    for each in ledger.differences:
        is_stated = NOT_SAID not in {each.base, each.target}
        is_other |= is_stated and any(map(each.can_affect, COMPUTE))
        is_other |= each.name == "batch_size" and not ledger.per_sample
    before_ns = case.before.own_ns(ledger.batch_factor(case.before.step_samples))
    after_ns = case.after.own_ns(ledger.batch_factor(case.after.step_samples))
    if not is_other or not before_ns or after_ns is None:
        return None
    return _OwnWork(before_ns, after_ns)


def _without_own_work(case: Case, row: Row, cause: Cause) -> Cause | None:
    """Return the cause less what others cannot have done, or `None` if little is left."""
    ledger, factor, words = case.ledger, case.ledger.samples_per_step, ""
    own, less_ns = _own_work(case), 0.0
    if own is not None and own.added_ns(row):
        less_ns = own.added_ns(row)
        was, now = in_time(ledger, own.before_ns, own.after_ns)
        words = (
            f"; {duration(less_ns * factor)} of it are the job's own: its processor time went from "
            f"{duration(was)} to {duration(now)} per step, and what it computes differs"
        )
    longest_ns = _longest_ns(case, row)
    if longest_ns is not None and longest_ns < row.delta.value - less_ns:
        less_ns = row.delta.value - longest_ns
        words = (
            f"; by the time that its threads waited for a core, at most "
            f"{duration(longest_ns * factor)} of it are the other processes'"
        )
    if not words or cause.cost_ns is None:
        return cause
    if not is_material((row.delta.value - less_ns) * factor, ledger):
        return None
    cost_ns = scale(cause.cost_ns, 1 - less_ns / row.delta.value)
    return dataclasses.replace(
        cause,
        cost_ns=cost_ns,
        share_of_gap=share_of(cost_ns.value, ledger),
        evidence=cause.evidence + words,
    )


def _longest_ns(case: Case, row: Row) -> float | None:
    """Return by how much others may have made a row longer; `None` if no wait was measured.

    They make threads wait for a core, and share caches and the units of cores.
    """
    before, after = case.before.figure(state_of), case.after.figure(state_of)
    if before is None or after is None or before.waited is None or after.waited is None:
        return None
    load = case.after.load
    started = 0.0
    if load is not None:
        started = load.started / load.cores
    others = after.others + started * after.cores
    waits_ns = waited_ns(case.ledger, after.waited, before.waited, others)
    return waits_ns + (after.share_of_others + started) * row.base.value


def _sends_as_much(case: Case) -> bool:
    """Return true if both runs exchange the same gradients in as many messages."""
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None:
        return False
    sent = [each.messages * each.message_bytes for each in (before, after)]
    counts = [before.messages, after.messages]
    return all(max(pair) <= MAX_EXCHANGE_RATIO * min(pair) for pair in (sent, counts))


def _is_held_up(case: Case, before: Load, after: Load) -> bool:
    """Return true if ranks wait longer for cores, lose them more often, or need more of them.

    If nothing is so, the ranks wait for something else than cores while others use them.
    """
    if _waits_longer(case, after):
        return True
    if before.switches_per_s is None or after.switches_per_s is None:
        return True
    least = max(MIN_SWITCHES_PER_S, MIN_SWITCHES_RATIO * before.switches_per_s)
    if after.switches_per_s > least:
        return True
    ledger = case.ledger
    known_ns = case.before.own_ns(ledger.batch_factor(case.before.step_samples))
    own_ns = case.after.own_ns(ledger.batch_factor(case.after.step_samples))
    return known_ns is None or own_ns is None or own_ns > MIN_WORK_RATIO * known_ns
