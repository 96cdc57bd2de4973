"""One rank takes longer than the others before they meet, and all of them wait for it."""

from __future__ import annotations

from collections.abc import Mapping

from profkit.analysis.line_changes import LineChange
from profkit.analysis.rank_lines import lines_by_rank
from profkit.explain.evidence import Evidence
from profkit.explain.rules._late_in_forward import (
    MIN_WHOLE_SHARE,
    broadcast_ns,
    confirm_lateness,
    describe_trade,
    find_trade,
    times_broadcasts,
)
from profkit.explain.rules._late_phases import Growth, describe_lateness, find_growth, row_of
from profkit.explain.rules._late_ranks import LateRanks, find_late_ranks
from profkit.explain.rules._stages import find_uneven, pipeline_of
from profkit.explain.rules.base import Case, Cause, grew, share_of
from profkit.frame.costs import INPUT
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate, scale, subtract
from profkit.frame.lateness import Lateness
from profkit.frame.phases import UNKNOWN
from profkit.text import duration, percent
from profkit.vocab import Phase

MIN_LATE_SHARE = 0.05
"""Ranks of a healthy run differ by a few percent of a step; a late one by at least this share."""

MIN_WAITS_SHARE = 0.5
"""The waits of the others grow by at least this share of a late rank's cost to them."""

KINDS_BY_ROW = {
    INPUT: ("input_bound", "input_stalls"),
    Phase.H2D.value: ("unpinned_copy",),
    Phase.OPTIMIZER.value: ("optimizer_unfused",),
    UNKNOWN: ("time_outside_phases",),
    Phase.OTHER.value: ("evaluation_in_training", "checkpoint_in_training", "pipeline_schedule"),
}
"""The kinds whose cost includes the late rank's own time, by the row in which it is late."""

_ON_HOST = (Phase.DATA.value, Phase.OTHER.value, UNKNOWN)
"""Phases that the host's time is about, whatever clock the others are on."""

_TELL = (
    "measure once with broadcast_buffers=False in DDP: then ranks wait for each other in the "
    "exchange of gradients only, which is recorded"
)

WAITING_KIND = "exposed_communication"
"""The kind whose cost includes the time that the other ranks wait."""


def find(case: Case) -> Cause | None:
    """Compare the rank that works longest with the others, in both runs.

    The cost is how much longer it takes than they do, because they wait as long. What it was late
    by in the base is subtracted.
    """
    late = case.after.work.latest()
    if late is None or not _knows_own_work(case):
        return None
    if find_uneven(case) is not None:  # the rank has more work
        return None
    trade = find_trade(case.after, late)
    if trade is None and case.after.figure(times_broadcasts):
        several = find_late_ranks(case)
        if several is not None and _stands_out(several.cost_ns, case):
            return _blame_several(case, several)
    confirmed = confirm_lateness(case.after, late) if trade is not None else late
    growth = find_growth(
        case, confirmed or late, has_trade=trade is not None, is_told=confirmed is not None
    )
    if growth is None or not _is_late(case, growth, has_trade=trade is not None):
        return None
    added, ledger = growth.cost_ns, case.ledger
    share, evidence = share_of(added.value, ledger), describe_lateness(case, growth)
    # The others' waiting is part of the exchange, the rank's own time is part of its phases.
    ranks = case.after.costs.ranks
    own_ns = (added.value + growth.hidden.ns) / ranks
    takes = {WAITING_KIND: max(0.0, added.value - own_ns)}
    if confirmed is None and trade is not None:
        evidence += describe_trade(late, trade)
        unsure = Cause("late_rank", added, share, evidence, _TELL, takes=takes)
        return unsure if grew(ledger.total, ledger) else None
    late = growth.late
    evidence += _describe_waiting(case, late, trade) + describe_line(case.after, late)
    rows = []
    for phase, change in growth.changes.items():
        if change.value > 0:
            rows.append(row_of(phase))
            for kind in KINDS_BY_ROW.get(rows[-1], ()):
                takes[kind] = takes.get(kind, 0.0) + change.value / ranks
    waits_in = Phase.FORWARD.value if trade is not None else Phase.ALLREDUCE.value
    return Cause(
        "late_rank",
        added,
        share,
        evidence,
        _remedy(case.after, late),
        detail=rows[0],
        takes=takes,
        rows=(*rows, *({waits_in} - set(rows))),
    )


def _blame_several(case: Case, several: LateRanks) -> Cause:
    """Return the cause of ranks that are late independently of each other."""
    ranks = case.after.costs.ranks
    added, takes, own_ns = several.cost_ns, dict[str, float](), 0.0
    rows: dict[str, None] = {}
    for each in several.all:
        rows[row_of(each.phase)] = None
        mean_ns = each.excess_ns / ranks
        own_ns += mean_ns
        for kind in KINDS_BY_ROW.get(row_of(each.phase), ()):
            takes[kind] = takes.get(kind, 0.0) + mean_ns
    takes[WAITING_KIND] = max(0.0, added.value - own_ns)
    return Cause(
        "late_rank",
        added,
        share_of(added.value, case.ledger),
        several.describe(case),
        "compare these ranks' hosts, cores, disks and clocks with the others'",
        detail=next(iter(rows)),
        takes=takes,
        rows=(*rows, *({Phase.ALLREDUCE.value} - set(rows))),
    )


def _remedy(evidence: Evidence, late: Lateness) -> str:
    """Return what to compare: the machine, and the stage if no other rank has the same one."""
    words = f"compare rank {late.rank}'s host, cores, disk and clock with the others'"
    pipeline = evidence.figure(pipeline_of)
    parts = {each.rank: each.stages for each in pipeline.stages} if pipeline else {}
    own = parts.pop(late.rank, ())
    if own and own not in parts.values():  # more work in a stage looks like a slow host
        words += ", and what its stage computes with the other run: no other rank has that stage"
    return words


def _is_late(case: Case, growth: Growth, *, has_trade: bool) -> bool:
    """Return true if a rank is late by more than ranks of a healthy run differ."""
    late = growth.late
    excess = scale(late.excess, case.ledger.batch_factor(case.after.step_samples))
    if not (_stands_out(growth.cost_ns, case) and _stands_out(excess, case)):
        return False
    if has_trade:
        return True
    return late.whole_ns >= MIN_WHOLE_SHARE * late.excess.value and _wait_longer(case, growth)


def _wait_longer(case: Case, growth: Growth) -> bool:
    """Return true if ranks wait longer for the latest one than in the base.

    If another rank was as late there, nothing is lost: it is only another one now.
    """
    before, after = case.before.work.waits(), case.after.work.waits()
    if after is None or before is None:
        return after is not None
    longer = subtract(after, before)
    ranks = case.after.costs.ranks
    least_ns = MIN_WAITS_SHARE * growth.cost_ns.value * (ranks - 1) / ranks
    return longer.low is not None and longer.low > 0 and longer.value >= least_ns


def _describe_waiting(case: Case, late: Lateness, traded_ns: float | None) -> str:
    """Return how long the others wait for a rank, in their forward or in the exchange."""
    words = ""
    if traded_ns is not None:
        words = f", and the others' forward {duration(traded_ns)}: there they wait for it"
        if not case.after.figure(broadcast_ns):
            words += ", if it begins with a broadcast of the model's buffers"
    basis = case.after.basis
    waited = basis.late_rank
    if waited is not None and waited.rank == late.rank:
        words += (
            f"; each of the others waits {duration(waited.waited_ns)} per step, and "
            f"{percent(waited.share, 0)} of the waiting of all ranks is for it"
        )
    return words


def describe_line(evidence: Evidence, late: Lateness) -> str:
    """Return the line on which the rank spends most of that time, if stacks were sampled."""
    if evidence.costs.clock is not PhaseClock.HOST and late.phase not in _ON_HOST:
        return ""
    for change in evidence.figure(find_rank_lines).get(late.rank, ()):
        if change.phase == late.phase and change.difference.value > 0 and change.place.line:
            longer = duration(change.difference.value)
            return f"; at {change.place.words()} it spends {longer} per step longer than they do"
    return ""


def find_rank_lines(evidence: Evidence) -> Mapping[int, tuple[LineChange, ...]]:
    """Return the lines on which single ranks certainly spend another time than the others."""
    return lines_by_rank(evidence.trace, evidence.used)


def _knows_own_work(case: Case) -> bool:
    """Return true if the work of ranks is known apart from their waits, on one clock.

    A rank whose device waits for the exchange looks like one that works longer, unless the wait was
    timed.
    """
    if case.after.exchanges is None:
        return False
    before, after = case.before.costs, case.after.costs
    same_clock = before.clock is after.clock and after.clock is not PhaseClock.LAUNCH
    return same_clock and after.exchange_timed


def _stands_out(excess: Estimate, case: Case) -> bool:
    step_ns = case.ledger.total.base.value * case.ledger.samples_per_step
    is_clear = excess.low is not None and excess.low > 0
    return is_clear and excess.value >= MIN_LATE_SHARE * step_ns
