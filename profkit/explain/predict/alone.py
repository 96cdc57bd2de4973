"""Causes that one run shows by itself, and its model without them.

Each function returns the removal of one kind of cause, or raises `NotShownError` with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.trend import find_trend
from profkit.analysis.whatif.changes import (
    level_out,
    reduce_peaks,
    remove_trend,
    shift_parts,
    without_transfers,
)
from profkit.analysis.whatif.step_model import StepModel
from profkit.explain.evidence import Evidence
from profkit.explain.named import CHECKPOINT, OF_PIPELINE
from profkit.explain.predict.job import Job
from profkit.explain.predict.late_in_forward import confirm_lateness, find_trade, times_broadcasts
from profkit.explain.rules.garbage_pauses import garbage_ns
from profkit.frame.columns import durations, rows_of_steps, step_places
from profkit.frame.costs import EVALUATION
from profkit.frame.estimate import Estimate, Floats
from profkit.frame.gaps import unknown_places
from profkit.frame.lateness import Lateness
from profkit.frame.phases import UNKNOWN
from profkit.frame.pipelines import MESSAGES
from profkit.text import duration, percent, plural
from profkit.vocab import Phase

DATA, OTHER = Phase.DATA.value, Phase.OTHER.value

SHORT_WAITS = 0.1
"""The quantile of the waits that no stall reaches, unless nearly all steps stall."""


STALL_RATIO, MAX_STALLED_SHARE = 5.0, 0.25
"""A step stalls if it waits so many times as long as usual, and if so few of the steps do."""

MIN_LATE_SHARE = 0.05
"""Ranks of a healthy run differ by a few percent of a step; a late one by at least this share."""

MIN_PHASE_SHARE = 0.1
"""Phases of a late rank that differ by less than this share of its latest phase are noise."""

MIN_SHOWN_SHARE = 0.02
"""What is below this share of the step is noise: two runs of one job differ by as much."""


class NotShownError(Exception):
    """The run does not show a cause by itself, so it cannot be removed. The message says why."""


@dataclass(frozen=True, eq=False)
class Removal:
    """A run without a cause: the likely model first, then those at the ends of the interval."""

    models: tuple[StepModel, ...]
    rests_on: tuple[str, ...] = ()
    leaves_out: tuple[str, ...] = ()
    why: str = ""
    """Why the answer is inconclusive; empty if it is not."""
    next: str = ""


def require(share: float, words: str) -> None:
    """Raise `NotShownError` if a share of the step is no more than noise."""
    if math.isnan(share):
        raise NotShownError("no step has a length")
    if not share >= MIN_SHOWN_SHARE:
        raise NotShownError(f"{words} {percent(max(0.0, share))} of the step")


def _timed_waits(model: StepModel) -> Floats:
    """Return the waits for batches; a loader that is not the framework's own is in `unknown`."""
    waits = model.part(DATA)
    if not waits.any():
        raise NotShownError("no wait for a batch was recorded")
    return waits


def without_waits(job: Job, model: StepModel) -> Removal:
    waits = _timed_waits(model)
    require(waits.mean() / model.wall.mean(), "the waits for batches are")
    ready = np.zeros_like(waits)
    for place, line in enumerate(model.lines):
        if line.loader is not None:
            ready[place] = np.minimum(waits[place], line.loader.taking)
    why = what_next = ""
    if not model.loaders or not model.loaders[0].workers:
        why = "this is the best case: no workers made the batches, so nobody knows what they cost"
        what_next = "profkit whatif RUN --workers 2, and record some steps with workers"
    return Removal(
        (model.with_part(DATA, ready),),
        (f"each batch is ready when it is asked for; now the loop waits {_mean(waits)} per step",),
        ("what making batches faster would cost elsewhere",),
        why,
        what_next,
    )


def without_stalls(job: Job, model: StepModel) -> Removal:
    waits = _timed_waits(model)
    usual = np.median(waits, axis=1, keepdims=True)
    stalled = waits > STALL_RATIO * usual
    share = (waits - usual)[stalled].sum() / model.wall.sum()
    # If most steps stall, so does the median one.
    least = np.quantile(waits, SHORT_WAITS, axis=1, keepdims=True)
    many = (waits - least)[waits > STALL_RATIO * least].sum() / model.wall.sum()
    is_few = share >= MIN_SHOWN_SHARE and stalled.mean() <= MAX_STALLED_SHARE
    if many >= MIN_SHOWN_SHARE and not is_few:
        raise NotShownError("no few steps wait far longer for their batch than the others")
    require(share, "waits beyond the usual one are")
    return Removal(
        (model.with_part(DATA, np.where(stalled, usual, waits)),),
        (f"{plural(int(stalled.any(axis=0).sum()), 'step')} wait as long as the median step",),
    )


def without_activity(job: Job, model: StepModel, name: str | None) -> Removal:
    """Remove what is done in the phase `other`, or only one kind of it.

    What the schedule of a pipeline does there is part of training.
    """
    spans = job.evidence.basis.spans
    spans = rows_of_steps(spans.filter(pc.equal(spans["phase"], OTHER)), model.steps)
    spans = spans.filter(pc.equal(spans["depth"], 0))
    names = spans["name"].cast("string")
    if name is not None:
        spans = spans.filter(pc.equal(names, name))
    else:
        spans = spans.filter(pc.invert(pc.is_in(names, pa.array(OF_PIPELINE))))
    place, length = step_places(spans, model.steps), durations(spans)
    rank, now = spans["rank"].to_numpy(), model.part(OTHER)
    less = np.zeros_like(now)
    for at, line in enumerate(model.lines):
        mine = (rank == line.rank) & (place >= 0)
        less[at] = np.bincount(place[mine], weights=length[mine], minlength=now.shape[1])
    words = "evaluation, checkpoints and logging take"
    if name:
        words = "checkpoints take"
    share = less.mean() / model.wall.mean()
    for each in job.evidence.costs.apart:
        if each.reason == EVALUATION and each.excess_ns > 0 and not share >= MIN_SHOWN_SHARE:
            raise NotShownError(
                f"{plural(each.steps, 'step')} with evaluations or checkpoints are excluded from "
                f"the figures; over all steps they add {duration(each.excess_ns)} per step"
            )
    require(share, words)
    changed = model.with_part(OTHER, np.maximum(now - less, 0.0))
    by_rank, why = less.mean(axis=1), ""
    uneven = (by_rank.max() - by_rank.min()) / model.wall.mean()
    if uneven >= MIN_SHOWN_SHARE and not job.evidence.figure(times_broadcasts):
        why = "ranks may wait for the one that does this in forward, which was not recorded"
    return Removal((changed,), (f"{words} {_mean(less)} per step",), why=why)


def _at_ends(
    change: Callable[[StepModel, float], StepModel], model: StepModel, cost: Estimate
) -> tuple[StepModel, ...]:
    """Return the model without a cost, and without the ends of its interval."""
    found = [change(model, cost.value)]
    for end in (cost.low, cost.high):
        if end is not None:
            found.append(change(model, end))
    return tuple(found)


def without_garbage(job: Job, model: StepModel) -> Removal:
    found = job.evidence.figure(garbage_ns)
    if found is None:
        raise NotShownError("the garbage collector was not watched: record with --collect garbage")
    require(found.value / model.wall.mean(), "collections take")
    return Removal(
        _at_ends(reduce_peaks, model, found),
        (f"collections pause a rank for {duration(found.value)} per step",),
        ("in which steps it pauses: the time is taken where steps are long",),
    )


def without_drift(job: Job, model: StepModel) -> Removal:
    trend = find_trend(job.evidence.costs)
    if trend is None:
        raise NotShownError(f"{plural(job.evidence.costs.steps, 'step')} are too few for a trend")
    added = trend.added_ns
    require(added.value / model.wall.mean(), "the trend adds")
    if not trend.rises:
        raise NotShownError("the steps do not surely become longer throughout the run")
    return Removal(
        _at_ends(remove_trend, model, added),
        (f"all steps are as long as the first ones, {duration(trend.first_ns)}",),
    )


def without_time_outside(job: Job, model: StepModel) -> Removal:
    basis = job.evidence.basis
    places = unknown_places(basis.steps, basis.spans, model.steps)
    times = np.maximum([each.step_ns for each in places], 0.0).tolist()
    require(sum(times) / model.wall.mean(), "time outside all phases is")
    largest, usual = times[0], float(np.median(times[1:] or [0.0]))
    ranks, first = range(len(model.lines)), places[0]
    what_next = "look at the lines: profkit report RUN"
    if job.evidence.code is None:
        what_next = "look at the lines: profkit run --lines on -- COMMAND"
    found = []
    for less in (largest - usual, largest, sum(times)):
        found.append(shift_parts(model, ranks, [UNKNOWN], [less]))
    return Removal(
        tuple(found),
        (f"{duration(largest)} per step go between {first.after} and {first.before}",),
        why="this is the best case: the run does not show how much of that time the job needs",
        next=what_next,
    )


def without_exchange(job: Job, model: StepModel) -> Removal:
    if not model.members:
        raise NotShownError("no exchange between ranks was recorded, or not on all of them")
    exposed = model.wall.mean() - model.own_work().mean()
    require(exposed / model.wall.mean(), "the exposed exchange is")
    return Removal(
        (without_transfers(model),),
        ("transfers take no time; ranks still wait for the last one",),
        why="this is the best case: the run does not show what its links could reach",
        next="profkit whatif RUN --base OTHER --without exposed_communication, with a run on other "
        "links",
    )


def without_repeated_exchange(job: Job, model: StepModel) -> Removal:
    rows = rows_of_steps(job.evidence.basis.collectives, model.steps)
    rows = rows.filter(rows["bucket"].is_valid())
    found = job.evidence.exchanges
    if not rows.num_rows or found is None or not model.detailed:
        raise NotShownError("no single gradient buckets were recorded")
    distinct = rows.group_by(["rank", "step", "bucket"]).aggregate([])
    times = round(rows.num_rows / distinct.num_rows)
    if times < 2:
        raise NotShownError("each gradient bucket is sent once per step")
    places = np.flatnonzero(model.buckets)
    transfer = model.transfer.copy()
    transfer[places[: len(places) - len(places) // times]] = 0.0
    lines = without_transfers(model, 1.0 / times).lines
    return Removal(
        (dataclasses.replace(model, transfer=transfer, lines=lines),),
        (f"each bucket is sent once per step, and not {times} times",),
    )


def with_even_stages(job: Job, model: StepModel) -> Removal:
    ops = set(pc.unique(job.evidence.trace.collectives["op"]).to_pylist())
    if len(model.lines) < 2 or not ops & set(MESSAGES):
        raise NotShownError("the run shows no pipeline with stages on several ranks")
    level = model.own_work().mean(axis=1)
    above = (level.max() - level.mean()) / model.wall.mean()
    require(above, "the longest rank is above the mean by")
    return Removal(
        (level_out(model),),
        ("each rank computes as long as the mean of the ranks",),
        ("if the model can be divided so",),
    )


def _mean(times: Floats) -> str:
    return duration(float(times.mean()))


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
        raise NotShownError(f"no rank works longer than the others by {percent(MIN_LATE_SHARE, 0)}")
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


ALONE: Mapping[str, Callable[[Job, StepModel], Removal]] = {
    "late_rank": without_late_ranks,
    "input_bound": without_waits,
    "input_stalls": without_stalls,
    "evaluation_in_training": lambda job, model: without_activity(job, model, None),
    "checkpoint_in_training": lambda job, model: without_activity(job, model, CHECKPOINT),
    "garbage_pauses": without_garbage,
    "drift": without_drift,
    "time_outside_phases": without_time_outside,
    "exposed_communication": without_exchange,
    "accumulation_without_no_sync": without_repeated_exchange,
    "uneven_stages": with_even_stages,
    "long_last_stage": with_even_stages,
}
"""What one run shows without a comparison, by the kind of the cause."""


def shown_alone(job: Job, kinds: Sequence[str] = tuple(ALONE)) -> dict[str, Removal]:
    """Return the removals of all causes that a run shows by itself."""
    found = {}
    if job.model is not None:
        for kind in kinds:
            try:
                found[kind] = ALONE[kind](job, job.model)
            except NotShownError:
                continue
    return found
