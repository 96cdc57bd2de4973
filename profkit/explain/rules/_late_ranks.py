"""Several ranks that are late: in other phases, or before other meetings of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.unknown_places import main_thread
from profkit.explain.evidence import Evidence
from profkit.explain.rules._input import is_slow_on_all_ranks
from profkit.explain.rules._late_phases import row_of
from profkit.explain.rules._stages import pipeline_of
from profkit.explain.rules.base import Case, grew, here
from profkit.frame.columns import places_in, rows_of_rank, step_places
from profkit.frame.device_clock import Bools
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate, Floats, Ints, estimate_ratios, scale, subtract
from profkit.frame.intervals import covered_each
from profkit.frame.lateness import WORK, RankWork
from profkit.frame.phases import UNKNOWN
from profkit.text import duration
from profkit.vocab import Phase

MIN_SHARE = 0.1
"""Each of several late ranks must be late by at least this share of the base's step.

Ranks that share a machine differ in single phases by more than in their whole work.
"""


class Late(NamedTuple):
    """A rank that is later than the others' median in one phase before one meeting."""

    segment: int
    rank: int
    phase: str
    excess_ns: float
    """More than in the base, per step of its batch."""


class LateRanks(NamedTuple):
    """Ranks that are late independently of each other, and what that costs together."""

    all: tuple[Late, ...]
    """The latest first."""
    cost_ns: Estimate
    """Per step of the base's batch."""
    alone_ns: Mapping[int, float]
    """The part of the cost that ends if only this rank is put right."""

    def describe(self, case: Case) -> str:
        parts: list[str] = []
        for each in self.all:
            where = "time outside all phases" if each.phase == UNKNOWN else row_of(each.phase)
            takes = duration(each.excess_ns)
            longer = "" if parts else " per step longer than the others'"
            parts.append(f"rank {each.rank}'s {where} takes {takes}{longer}")
        saved = []
        for rank, ns in self.alone_ns.items():
            saved.append(f"{duration(ns)} for rank {rank}")
        return (
            f"{here(case.ledger)}{', and '.join(parts)}; put right alone, each saves {_join(saved)}"
        )


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def find_late_ranks(case: Case) -> LateRanks | None:
    """Return the late ranks if there are several, and what they cost together.

    The cost is how much longer the latest rank takes before each meeting than it would if nobody
    were late, less the same in the base.
    """
    after, before = case.after, case.before
    if not all(map(_meet_as_one, (after, before))) or not grew(case.ledger.total, case.ledger):
        return None
    found = sorted(_find_late(case), key=lambda each: -each.excess_ns)
    ranks: dict[int, list[Late]] = {}
    for each in found:
        ranks.setdefault(each.rank, []).append(each)
    if len(ranks) < 2:
        return None
    factor = case.ledger.batch_factor(after.step_samples)
    known_factor = case.ledger.batch_factor(before.step_samples)
    cost_ns = scale(_cost(segments_of(after), found), factor)
    base = segments_of(before)
    if len(base) == len(segments_of(after)):
        known_ns = _cost(base, found)
        if known_ns.value > 0:
            cost_ns = subtract(cost_ns, scale(known_ns, known_factor))
    alone_ns = {}
    for rank, mine in ranks.items():
        alone_ns[rank] = factor * _cost(segments_of(after), mine).value
    return LateRanks(tuple(found), cost_ns, alone_ns)


def _meet_as_one(evidence: Evidence) -> bool:
    """Return true if all ranks do the same work and meet together, on the host's clock.

    Stages of a pipeline, for example, are different work, and meet their neighbours alone.
    """
    sizes = pc.unique(evidence.trace.collectives["group_size"]).to_pylist()
    is_one_group = set(sizes) <= {evidence.trace.manifest.world_size}
    if not is_one_group or evidence.costs.clock is not PhaseClock.HOST:
        return False
    return evidence.figure(pipeline_of) is None  # one of two ranks is one group, too


def segments_of(evidence: Evidence) -> tuple[RankWork, ...]:
    """Return the work before each meeting of a step, or that of whole steps."""
    return evidence.figure(find_segments) or (evidence.work,)


def find_segments(evidence: Evidence) -> tuple[RankWork, ...]:
    """Return the work before each meeting of a step; nothing without several of them."""
    if evidence.costs.clock is not PhaseClock.HOST:
        return ()
    return work_by_segment(evidence.basis.steps, evidence.basis.spans, evidence.used)


def _find_late(case: Case) -> Iterable[Late]:
    """Yield each rank and phase that is late by much more than in the base, by segment."""
    ledger = case.ledger
    factor = ledger.batch_factor(case.after.step_samples)
    known_factor = ledger.batch_factor(case.before.step_samples)
    least_ns = MIN_SHARE * ledger.total.base.value * ledger.samples_per_step
    base = segments_of(case.before)
    for number, work in enumerate(segments_of(case.after)):
        same = base[number] if len(base) == len(segments_of(case.after)) else case.before.work
        for rank, phase in work.later_by(least_ns / factor):
            grown_ns = factor * work.mean_ns(rank, phase) - known_factor * same.mean_ns(rank, phase)
            if grown_ns < least_ns:  # the others have become quicker
                continue
            change, was = scale(work.by_phase(rank)[phase], factor), same.by_phase(rank).get(phase)
            if was is not None and was.value > 0:
                change = subtract(change, scale(was, known_factor))
            if change.low is None or change.low <= 0 or change.value < least_ns:
                continue
            if phase != Phase.DATA.value or not is_slow_on_all_ranks(case, rank):
                yield Late(number, rank, phase, change.value)


def _cost(segments: Sequence[RankWork], late: Iterable[Late]) -> Estimate:
    """Return how much longer the latest ranks take than if these were as quick as the others."""
    lost: Floats | float = 0.0
    by_segment: dict[int, list[Late]] = {}
    for each in late:
        by_segment.setdefault(each.segment, []).append(each)
    for number, work in enumerate(segments):
        whole = work.ns.sum(axis=1)
        healed = whole.copy()
        for each in by_segment.get(number, ()):
            if each.rank in work.ranks:
                mine, phase = work.ranks.index(each.rank), work.phases.index(each.phase)
                healthy = _healthy(work, phase, by_segment[number])
                healed[mine] -= np.maximum(0.0, work.ns[mine, phase] - healthy)
        lost = lost + whole.max(axis=0) - healed.max(axis=0)
    series = np.atleast_2d(np.asarray(lost, dtype=np.float64))
    (found,) = estimate_ratios(series, np.ones_like(series))
    return found


def _healthy(work: RankWork, phase: int, late: Sequence[Late]) -> Floats:
    """Return the median time of a phase over the ranks that are not late in it."""
    is_late = np.zeros(len(work.ranks), dtype=bool)
    for each in late:
        if each.phase == work.phases[phase] and each.rank in work.ranks:
            is_late[work.ranks.index(each.rank)] = True
    others = np.flatnonzero(~is_late if not is_late.all() else is_late)
    return np.asarray(np.median(work.ns[others, phase], axis=0))


# The own work of ranks between the places of a step in which they meet.
#
# Ranks meet where they wait for each other: in the exchange of gradients, or in the broadcast of a
# model's buffers. A rank that is late before one meeting is waited for there, whoever is late
# before the next.
MOST_MEETINGS = 64
"""Ranks that meet more often in a step, such as those of FSDP, are looked at as a whole."""

LEAST_ALIKE = 0.9
"""The ranks must meet as often in at least this share of the steps."""


def work_by_segment(steps: pa.Table, spans: pa.Table, used: Ints) -> tuple[RankWork, ...]:
    """Return the own work of each rank before each meeting of a step, in their order.

    What follows the last meeting of a step is work before the first one of the next. There is
    nothing unless the ranks meet several times in a step, and equally often.
    """
    ranks = np.unique(steps["rank"].to_numpy()).astype(np.int64)
    own = []
    counts = np.zeros((len(ranks), len(used)), dtype=np.int64)
    for place, rank in enumerate(ranks.tolist()):
        mine = rows_of_rank(spans, rank)
        mine = mine.filter(pc.equal(mine["thread"].cast(pa.string()), main_thread(mine) or ""))
        at = step_places(mine, used)
        mine, at = mine.filter(pa.array(at >= 0)), at[at >= 0]
        own.append((rows_of_rank(steps, rank), mine, at))
        meets = places_in(mine["phase"], (Phase.ALLREDUCE.value,)) == 0
        counts[place] = np.bincount(at[meets], minlength=len(used))
    alike = (counts == counts[:1]).all(axis=0)
    if len(ranks) < 2 or not alike.any():
        return ()
    ((meetings, _),) = Counter(counts[0][alike].tolist()).most_common(1)
    kept = alike & (counts[0] == meetings)
    if not 2 <= meetings <= MOST_MEETINGS or kept.mean() < LEAST_ALIKE:
        return ()
    parts, segments = [], []
    for each in own:
        parts.append(_split(*each, used, kept, meetings))
    for ns in np.stack(parts, axis=1):
        segments.append(RankWork(tuple(ranks.tolist()), WORK, ns))
    return tuple(segments)


def _split(
    steps: pa.Table, spans: pa.Table, at: Ints, used: Ints, kept: Bools, meetings: int
) -> Floats:
    """Return one rank's own work by (segment, phase, step), in the steps that are kept."""
    place = step_places(steps, used)
    edges = np.zeros((2, len(used)), dtype=np.int64)
    for row, name in enumerate(("start_ns", "end_ns")):
        edges[row, place[place >= 0]] = steps[name].to_numpy()[place >= 0]
    begin, end = edges[:, kept]
    is_meeting = (places_in(spans["phase"], (Phase.ALLREDUCE.value,)) == 0) & kept[at]
    start, until = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    # Meetings of one thread do not overlap, so their order in time is that of steps.
    in_time = np.argsort(start[is_meeting])
    opened = start[is_meeting][in_time].reshape(-1, meetings)
    closed = until[is_meeting][in_time].reshape(-1, meetings)
    froms = np.concatenate([begin[:, None], closed], axis=1)
    untils = np.concatenate([opened, end[:, None]], axis=1)
    outer = spans["depth"].to_numpy() == 0
    times = np.zeros((meetings + 1, len(WORK), len(begin)))
    for number, name in enumerate(WORK):
        mine = outer & (places_in(spans["phase"], (name,)) == 0)
        if name != UNKNOWN and mine.any():
            covered = covered_each(start[mine], until[mine], froms.ravel(), untils.ravel())
            times[:, number] = covered.reshape(froms.shape).T
    times[:, WORK.index(UNKNOWN)] = (untils - froms).T - times.sum(axis=1)
    times[0] += times[-1]
    return times[:-1]
