"""One rank takes longer than the others before they meet, and all of them wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
from profkit.explain.rules.base import (
    Case,
    Cause,
    grew,
    here,
    is_material,
    other_side,
    share_of,
    shift,
)
from profkit.text import duration, percent
from profkit.vocab import Phase

MIN_WHOLE_SHARE = 0.5
"""A rank whose whole work is longer by less than this share of its late phase caught up."""

MIN_LATE_SHARE = 0.05
"""Ranks of a healthy run differ by a few percent of a step; a late one by at least this share."""

MIN_PHASE_SHARE = 0.1
"""Phases of a late rank that differ by less than this share of its latest phase are noise."""

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


class _Growth(NamedTuple):
    """What a rank is late by, less what it was late by in the base, in ns per step."""

    late: Lateness
    """In the phases in which its lateness changed."""
    cost_ns: Estimate
    """Per step of the base's batch."""
    known_ns: float
    """What it was late by in the same phases of the base; zero if it was not."""
    changes: Mapping[str, Estimate]
    """The change of each of these phases, the largest first; of some, it catches up."""


def find(case: Case) -> Cause | None:
    """Compare the rank that works longest with the mean of the others, in both runs.

    The cost is how much longer it takes than they do, because they wait as long. What it was late
    by in the base is subtracted.
    """
    if case.after.exchanges is None or not _knows_own_work(case):
        return None
    late = case.after.work.latest()
    if late is None:
        return None
    trade = find_trade(case.after.work, late)
    untold = ""
    if trade is not None:
        confirmed = _told_by_broadcasts(case.after, late) or _find_before_forward(case.after, late)
        untold = "" if confirmed else _describe_trade(late, trade)
        late = confirmed or late
    growth = _find_growth(case, late, has_trade=trade is not None, is_told=not untold)
    if growth is None:
        return None
    late, added = growth.late, growth.cost_ns
    factor = case.ledger.batch_factor(case.after.step_samples)
    if not _stands_out(added, case) or not _stands_out(scale(late.excess, factor), case):
        return None
    if trade is None and late.whole_ns < MIN_WHOLE_SHARE * late.excess.value:
        return None
    share = share_of(added.value, case.ledger)
    evidence = _describe_lateness(case, growth)
    # The others' waiting is part of the exchange, the rank's own time is part of its phases.
    ranks = case.after.costs.ranks
    takes = {WAITING_KIND: added.value * (ranks - 1) / ranks}
    if untold:
        unsure = Cause("late_rank", added, share, f"{evidence}{untold}", _TELL, takes=takes)
        return unsure if grew(case.ledger.total, case.ledger) else None
    evidence += _describe_waiting(case, late, trade) + describe_line(case.after, late)
    rows = []
    for phase, change in growth.changes.items():
        if change.value > 0:
            rows.append(_row_of(phase))
            for kind in KINDS_BY_ROW.get(rows[-1], ()):
                takes[kind] = takes.get(kind, 0.0) + change.value / ranks
    waits_in = Phase.FORWARD.value if trade is not None else Phase.ALLREDUCE.value
    return Cause(
        "late_rank",
        added,
        share,
        evidence,
        f"compare rank {late.rank}'s host, cores, disk and clock with the others'",
        detail=rows[0],
        takes=takes,
        rows=(*rows, *({waits_in} - set(rows))),
    )


def _find_growth(case: Case, late: Lateness, *, has_trade: bool, is_told: bool) -> _Growth | None:
    """Return by how much more a rank is late than in the base, in which phases.

    Small changes are noise. If it is not told who waits in forward, one phase counts alone.
    """
    after, before = case.after.work, case.before.work
    factor = case.ledger.batch_factor(case.after.step_samples)
    known_factor = case.ledger.batch_factor(case.before.step_samples)
    left_out = set()
    if has_trade and is_told:
        left_out.add(Phase.FORWARD.value)
    if is_slow_on_all_ranks(case, late.rank):
        left_out.add(Phase.DATA.value)
    known = before.by_phase(late.rank)
    changes = {}
    for phase, excess in after.by_phase(late.rank).items():
        was = known.get(phase)
        if was is not None and was.value * excess.value <= 0:
            was = None  # what another rank was late by
        change = minus(scale(excess, factor), scale(was, known_factor) if was else None)
        if phase in left_out or not (is_told or phase == late.phase):
            continue
        is_clear = change.low is not None and change.high is not None
        if is_clear and (change.low > 0 or change.high < 0):
            changes[phase] = change
    most_ns = max((change.value for change in changes.values()), default=0.0)
    least_ns = MIN_PHASE_SHARE * most_ns
    for phase, change in list(changes.items()):
        if abs(change.value) < least_ns or not is_material(abs(change.value), case.ledger):
            del changes[phase]
    if most_ns <= 0 or not changes:
        return None
    names = sorted(changes, key=lambda phase: -changes[phase].value)
    found, base = after.lateness(late.rank, *names), before.lateness(late.rank, *names)
    if found is None:
        return None
    known_ns = base.excess if base is not None and base.excess.value > 0 else None
    cost_ns = minus(
        scale(found.excess, factor), scale(known_ns, known_factor) if known_ns else None
    )
    if not has_trade:  # a rank that is late in all steps ends that ranks are late in turns
        in_turns_ns = before.turns_ns() * known_factor - after.turns_ns() * factor
        cost_ns = shift(cost_ns, -max(0.0, in_turns_ns))
    ordered = {name: changes[name] for name in names}
    return _Growth(found, cost_ns, known_ns.value if known_ns else 0.0, ordered)


def _row_of(phase: str) -> str:
    return INPUT if phase == Phase.DATA.value else phase


def _describe_lateness(case: Case, growth: _Growth) -> str:
    """Return in which phases the rank takes longer, and what it takes less for."""
    late = growth.late
    excess = case.after.work.by_phase(late.rank)
    longer, less = [], []
    for phase, change in growth.changes.items():
        where = "time outside all phases" if phase == UNKNOWN else _row_of(phase)
        if change.value <= 0:
            less.append(f"; its {where} takes {duration(-excess[phase].value)} less")
        elif longer:
            longer.append(f"its {where} {duration(excess[phase].value)}")
        else:
            longer.append(f"rank {late.rank}'s {where} takes {duration(excess[phase].value)}")
    joined = " and ".join(filter(None, [", ".join(longer[:-1]), longer[-1]]))
    words = f"{here(case.ledger)}{joined} per step longer than the others'"
    if is_material(growth.known_ns, case.ledger):
        words += f", against {duration(growth.known_ns)} in the {other_side(case.ledger)}"
    return words + "".join(less)


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
    excess = work.by_phase(late.rank)
    traded_ns = -excess[Phase.FORWARD.value].value
    if late.phase == Phase.FORWARD.value:
        traded_ns = 0.0
        for phase, each in excess.items():
            if phase not in (Phase.FORWARD.value, *_AFTER_FORWARD):
                traded_ns -= each.value
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
