"""One rank takes longer than the others before they meet, and all of them wait for it."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.analysis.device_times import PhaseClock
from profkit.analysis.estimate import Estimate, scale
from profkit.analysis.exchange import LateRank
from profkit.analysis.lateness import minus
from profkit.analysis.phases import UNKNOWN
from profkit.explain.evidence import Evidence
from profkit.explain.rules._input import is_slow_on_all_ranks
from profkit.explain.rules.base import Case, Finding, share_of
from profkit.text import duration, percent
from profkit.vocab import Phase

MIN_WHOLE_SHARE = 0.5
"""A rank whose whole work is longer by less than this share of its late phase caught up."""

MIN_LATE_SHARE = 0.05
"""Ranks of a healthy run differ by a few percent of a step; a late one by at least this share."""

KINDS_BY_ROW = {
    INPUT: ("input_bound", "input_stalls"),
    Phase.H2D.value: ("unpinned_copy",),
    Phase.OPTIMIZER.value: ("optimizer_unfused",),
    Phase.OTHER.value: ("evaluation_in_training", "checkpoint_in_training"),
}
"""The kinds whose cost includes the late rank's own time, by the row in which it is late."""

WAITING_KIND = "exposed_communication"
"""The kind whose cost includes the time that the other ranks wait."""


def find(case: Case) -> Finding | None:
    """Compare the rank that works longest with the mean of the others, in both runs.

    The cost is how much longer it takes than they do, because they wait as long. What it was late
    by in the base is subtracted.
    """
    if case.after.exchanges is None or not _knows_own_work(case):
        return None
    late = case.after.work.latest()
    if late is None:
        return None
    if late.phase == Phase.DATA.value and is_slow_on_all_ranks(case, late.rank):
        return None
    before = case.before.work.lateness(late.rank, late.phase)
    known = before.excess if before and before.excess.value > 0 else None
    factor = case.ledger.batch_factor(case.after.step_samples)
    added = scale(minus(late.excess, known), factor)
    if not _stands_out(added, case) or not _stands_out(scale(late.excess, factor), case):
        return None
    if late.whole_ns < MIN_WHOLE_SHARE * late.excess.value:
        return None
    row = where = INPUT if late.phase == Phase.DATA.value else late.phase
    if late.phase == UNKNOWN:
        where = "time outside all phases"
    evidence = (
        f"rank {late.rank}'s {where} takes {duration(late.excess.value)} per step longer than "
        "the others'"
    )
    waited = case.after.figure(find_waited_rank)
    if waited is not None and waited.rank == late.rank:
        evidence += (
            f"; each of the others waits {duration(waited.waited_ns)} per step for it, "
            f"{percent(waited.share, 0)} of all waiting is for it"
        )
    return Finding(
        "late_rank",
        added,
        share_of(added.value, case.ledger),
        evidence,
        f"compare rank {late.rank}'s host, cores, disk and clock with the others'",
        cause=row,
        takes=_explained(added.value, case.after.costs.ranks, row),
    )


def _knows_own_work(case: Case) -> bool:
    """Return true if the work of ranks is known apart from their waits, on one clock.

    A rank whose device waits for the exchange looks like one that works longer, unless the wait was
    timed.
    """
    before, after = case.before.costs, case.after.costs
    same_clock = before.clock is after.clock and after.clock is not PhaseClock.LAUNCH
    return same_clock and after.exchange_timed


def find_waited_rank(evidence: Evidence) -> LateRank | None:
    """Return the rank that most waiting in the exchange is for, if one stands out."""
    basis = evidence.basis
    return basis.late_rank(basis.exchange())


def _stands_out(excess: Estimate, case: Case) -> bool:
    step_ns = case.ledger.total.base.value * case.ledger.samples_per_step
    is_clear = excess.low is not None and excess.low > 0
    return is_clear and excess.value >= MIN_LATE_SHARE * step_ns


def _explained(added_ns: float, ranks: int, row: str) -> dict[str, float]:
    """Return what the late rank takes of other kinds' cost, each on average over all ranks.

    The others' waiting is part of the exchange, the rank's own time is part of its phase.
    """
    own = added_ns / ranks
    return {WAITING_KIND: added_ns - own, **dict.fromkeys(KINDS_BY_ROW.get(row, ()), own)}
