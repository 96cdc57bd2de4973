"""One rank takes longer than the others before they meet, and all of them wait for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.costs import INPUT
from profkit.analysis.device_times import PhaseClock
from profkit.analysis.estimate import Estimate, scale
from profkit.analysis.exchange import LateRank
from profkit.analysis.lateness import Lateness, RankWork, minus
from profkit.analysis.line_changes import LineChange
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.rank_lines import lines_by_rank
from profkit.explain.evidence import Evidence
from profkit.explain.rules._input import is_slow_on_all_ranks
from profkit.explain.rules.base import Case, Cause, grew, here, share_of
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
    UNKNOWN: ("time_outside_phases",),
    Phase.OTHER.value: ("evaluation_in_training", "checkpoint_in_training"),
}
"""The kinds whose cost includes the late rank's own time, by the row in which it is late."""

MIN_TRADED_SHARE = 0.25
"""Ranks trade places if the others take this share of a rank's lateness longer elsewhere."""


_ON_HOST = (Phase.DATA.value, Phase.OTHER.value, UNKNOWN)
"""Phases that the host's time is about, whatever clock the others are on."""

_AFTER_FORWARD = (Phase.BACKWARD.value, Phase.ALLREDUCE.value)
_TELL = (
    "measure once with broadcast_buffers=False in DDP: then ranks wait for each other in the "
    "exchange of gradients only, which is recorded"
)

WAITING_KIND = "exposed_communication"
"""The kind whose cost includes the time that the other ranks wait."""


def find(case: Case) -> Cause | None:
    """Compare the rank that works longest with the mean of the others, in both runs.

    The cost is how much longer it takes than they do, because they wait as long. What it was late
    by in the base is subtracted.
    """
    if case.after.exchanges is None or not _knows_own_work(case):
        return None
    late = case.after.work.latest()
    if late is None or (late.phase == Phase.DATA.value and is_slow_on_all_ranks(case, late.rank)):
        return None
    trade = find_trade(case.after.work, late)
    untold = ""
    if trade is not None:
        confirmed = _told_by_broadcasts(case.after, late) or _find_before_forward(case.after, late)
        untold = "" if confirmed else _describe_trade(late, trade)
        late = confirmed or late
    before = case.before.work.lateness(late.rank, late.phase)
    known = before.excess if before and before.excess.value > 0 else None
    factor = case.ledger.batch_factor(case.after.step_samples)
    added = scale(minus(late.excess, known), factor)
    if not _stands_out(added, case) or not _stands_out(scale(late.excess, factor), case):
        return None
    if trade is None and late.whole_ns < MIN_WHOLE_SHARE * late.excess.value:
        return None
    row = INPUT if late.phase == Phase.DATA.value else late.phase
    evidence = _describe_lateness(case, late, row)
    share = share_of(added.value, case.ledger)
    if untold:
        unsure = Cause("late_rank", added, share, f"{evidence}{untold}", _TELL)
        return unsure if grew(case.ledger.total, case.ledger) else None
    evidence += _describe_waiting(case, late, trade) + describe_line(case.after, late)
    # The others' waiting is part of the exchange, the rank's own time is part of its phase.
    own_ns = added.value / case.after.costs.ranks
    takes = dict.fromkeys(KINDS_BY_ROW.get(row, ()), own_ns)
    return Cause(
        "late_rank",
        added,
        share,
        evidence,
        f"compare rank {late.rank}'s host, cores, disk and clock with the others'",
        detail=row,
        takes={WAITING_KIND: added.value - own_ns, **takes},
        rows=(row, Phase.FORWARD.value if trade is not None else Phase.ALLREDUCE.value),
    )


def _describe_lateness(case: Case, late: Lateness, row: str) -> str:
    where = "time outside all phases" if late.phase == UNKNOWN else row
    return (
        f"{here(case.ledger)}rank {late.rank}'s {where} takes {duration(late.excess.value)} "
        "per step longer than the others'"
    )


def _describe_waiting(case: Case, late: Lateness, traded_ns: float | None) -> str:
    """Return how long the others wait for a rank, in their forward or in the exchange."""
    words = ""
    if traded_ns is not None:
        words = f", and the others' forward {duration(traded_ns)}: there they wait for it"
        if not case.after.figure(broadcast_ns):
            words += ", if it begins with a broadcast of the model's buffers"
    waited = case.after.figure(find_waited_rank)
    if waited is not None and waited.rank == late.rank:
        words += (
            f"; each of the others waits {duration(waited.waited_ns)} per step for it, "
            f"{percent(waited.share, 0)} of all waiting is for it"
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


def find_trade(work: RankWork, late: Lateness) -> float | None:
    """Return how much longer the others take in forward, or outside it for lateness there.

    A rank that comes late to its forward makes the others wait in theirs, if it begins with a
    broadcast (as DDP's does, of buffers). In the rows, those that wait look late in forward.
    """
    least_ns = MIN_TRADED_SHARE * late.excess.value
    if late.phase in _AFTER_FORWARD:
        return None
    if late.phase == Phase.FORWARD.value:
        traded_ns = late.excess.value - late.whole_ns
    else:
        forward = work.lateness(late.rank, Phase.FORWARD.value)
        traded_ns = -forward.excess.value if forward is not None else 0.0
    return traded_ns if traded_ns >= least_ns > 0 else None


def _describe_trade(late: Lateness, traded_ns: float) -> str:
    there = "outside forward" if late.phase == Phase.FORWARD.value else "in forward"
    return (
        f", and they take {duration(traded_ns)} longer {there}: a rank that comes late to its "
        "forward makes the others wait in theirs if the model's buffers are broadcast, which was "
        "not recorded, so it cannot be told which ranks wait and which are late"
    )


def _told_by_broadcasts(evidence: Evidence, late: Lateness) -> Lateness | None:
    """Return the rank that waits least in broadcasts, and where it is late.

    The result is `None` without broadcasts of all ranks that explain the trade.
    """
    waits = evidence.figure(broadcast_ns)
    if len(waits) < 2 or len(waits) < len(evidence.work.ranks):
        return None
    last = min(waits, key=lambda rank: waits[rank])
    if max(waits.values()) - waits[last] < MIN_WHOLE_SHARE * late.excess.value:
        return None
    found = []
    for phase in evidence.work.phases:
        lateness = evidence.work.lateness(last, phase)
        if lateness is not None and phase not in (Phase.FORWARD.value, *_AFTER_FORWARD):
            found.append(lateness)
    return max(found, key=lambda each: each.excess.value, default=None)


def _find_before_forward(evidence: Evidence, late: Lateness) -> Lateness | None:
    """Return the rank that takes longer before its forward, where no rank waits for another.

    The result is `None` if its own collectives there may be what takes it longer.
    """
    found = []
    for rank in evidence.work.ranks:
        for phase in evidence.work.phases:
            lateness = evidence.work.lateness(rank, phase)
            if lateness is not None and phase not in (Phase.FORWARD.value, *_AFTER_FORWARD):
                found.append(lateness)
    first = max(found, key=lambda each: each.excess.value, default=None)
    if first is None or first.excess.value < MIN_WHOLE_SHARE * late.excess.value:
        return None
    met_ns = evidence.figure(own_collectives_ns).get(first.rank, 0.0)
    return first if met_ns < MIN_TRADED_SHARE * first.excess.value else None


def own_collectives_ns(evidence: Evidence) -> dict[int, float]:
    """Return the time in collectives that the job calls itself in ns per step, by rank."""
    rows = evidence.trace.collectives
    is_broadcast = pc.equal(rows["op"].cast("string"), "broadcast")
    return _ns_by_rank(evidence, rows.filter(pc.and_not(rows["bucket"].is_null(), is_broadcast)))


def broadcast_ns(evidence: Evidence) -> dict[int, float]:
    """Return the time in recorded broadcasts in ns per step, by rank."""
    rows = evidence.trace.collectives
    return _ns_by_rank(evidence, rows.filter(pc.equal(rows["op"].cast("string"), "broadcast")))


def _ns_by_rank(evidence: Evidence, rows: pa.Table) -> dict[int, float]:
    """Return the time of collectives in ns per step, by rank."""
    rows = evidence.select_used(rows)
    rank = rows["rank"].to_numpy()
    length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    found = {}
    for each in np.unique(rank).tolist():
        found[each] = float(length[rank == each].sum()) / len(evidence.used)
    return found
