"""A run without its late ranks."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from profkit.analysis.lateness import Lateness
from profkit.analysis.pipelines import MESSAGES
from profkit.analysis.whatif.changes import shift_parts
from profkit.analysis.whatif.step_model import StepModel
from profkit.explain.evidence import Evidence
from profkit.explain.predict.job import Job
from profkit.explain.predict.shown import AbsentError, NotShownError, Removal
from profkit.explain.rules._late_in_forward import confirm_lateness, find_trade
from profkit.explain.rules._late_phases import MIN_PHASE_SHARE
from profkit.explain.rules.late_rank import MIN_LATE_SHARE
from profkit.text import duration, percent
from profkit.vocab import Phase

LEAVES_OUT = (
    "why the rank is late",
    "what ranks that no longer wait take from each other, such as cores",
)


def without_late_ranks(job: Job, model: StepModel) -> Removal:
    """Take from each late rank what it surely works longer than the median of the others."""
    evidence, least_ns = job.evidence, MIN_LATE_SHARE * float(model.wall.mean())
    late = evidence.work.latest()
    if late is None:
        raise NotShownError("one rank was recorded, or the ranks have no steps in common")
    if set(MESSAGES) & set(pc.unique(evidence.trace.collectives["op"]).to_pylist()):
        raise NotShownError("stages of a pipeline have work of their own: ask for uneven_stages")
    if not evidence.costs.exchange_timed:
        raise NotShownError("the device's wait for the exchange was not timed")
    if max(late.whole_ns, late.excess.value) < least_ns:
        raise AbsentError(f"no rank works longer than the others by {percent(MIN_LATE_SHARE, 0)}")
    trade = find_trade(evidence, late)
    if trade is not None:
        return without_traded(job, model, late, trade)
    changed, words = [model, model, model], []
    for rank in evidence.work.ranks:
        excess, ends = sure_excess(evidence, rank)
        whole_ns = sum(excess.values())
        if whole_ns < least_ns:
            continue
        place = model.ranks.index(rank)
        for at, factor in enumerate(ends):
            less = factor * np.array(list(excess.values()))
            changed[at] = shift_parts(changed[at], [place], list(excess), less.tolist())
        words.append(f"rank {rank} works {duration(whole_ns)} less per step")
    if not words:
        raise NotShownError(f"no rank surely takes {percent(MIN_LATE_SHARE, 0)} of the step longer")
    return Removal(tuple(changed), tuple(words), LEAVES_OUT)


def sure_excess(evidence: Evidence, rank: int) -> tuple[dict[str, float], tuple[float, ...]]:
    """Return by how much a rank surely takes longer than the others, by part.

    The factors lead to its value, and to the ends of its interval.
    """
    found, values = {}, []
    for phase, excess in evidence.work.by_phase(rank).items():
        if excess.low is not None and excess.low > 0:
            found[phase] = excess.value
            values.append(excess.value)
    least_ns = MIN_PHASE_SHARE * max(values, default=0.0)
    for phase in [phase for phase in found if found[phase] < least_ns]:
        del found[phase]
    late = evidence.work.lateness(rank, *found)
    if late is None or not found or late.excess.low is None or late.excess.high is None:
        return {}, (1.0,)
    # What it catches up with in other phases is not saved.
    sure_ns = sum(found.values())
    share = min(1.0, max(0.0, late.whole_ns) / sure_ns)
    ends = (1.0, late.excess.low / sure_ns, late.excess.high / sure_ns)
    return {phase: share * ns for phase, ns in found.items()}, ends


def without_traded(job: Job, model: StepModel, late: Lateness, traded_ns: float) -> Removal:
    """Remove a rank's lateness, for which the others wait in their forward."""
    told = confirm_lateness(job.evidence, late)
    if told is None:
        raise NotShownError(
            "the ranks wait for each other in forward, where no broadcast was recorded, so it "
            "cannot be told which of them is late: repeat with broadcast_buffers=False"
        )
    ranks = model.ranks
    others = np.flatnonzero(np.array(ranks) != told.rank).tolist()
    less = min(told.excess.value, max(traded_ns, late.excess.value))
    changed = shift_parts(model, [ranks.index(told.rank)], [told.phase], [told.excess.value])
    changed = shift_parts(changed, others, [Phase.FORWARD.value], [less])
    low = shift_parts(model, [ranks.index(told.rank)], [told.phase], [told.excess.value])
    low = shift_parts(low, others, [Phase.FORWARD.value], [min(traded_ns, less)])
    words = f"rank {told.rank} works {duration(told.excess.value)} less, for which others wait"
    return Removal((changed, low), (f"{words} in forward",), LEAVES_OUT)
