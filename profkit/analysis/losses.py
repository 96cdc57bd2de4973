"""Time of a run that is not spent on training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from profkit.analysis.phase_shares import PartEstimate, estimate_parts
from profkit.frame.costs import EVALUATION, OUTLIER, REST, RunCosts
from profkit.frame.device_clock import WORKS
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import NEGLIGIBLE, Estimate
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import PhaseBasis
from profkit.frame.selection import COMPILING, EPOCH_START
from profkit.text import duration, percent, plural
from profkit.vocab import OTHER_OF_PIPELINE, Phase

TRAINS = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value, REST)
_COSTLY_STEPS = (EPOCH_START, COMPILING, EVALUATION, OUTLIER)
"""Reasons for excluding steps in which the job does something that it will do again."""

MEANINGS = {
    **{phase.value: phase.meaning for phase in Phase},
    UNKNOWN: "wall time that no phase covers",
    EPOCH_START: "epoch starts",
    COMPILING: "compiling",
    EVALUATION: "evaluation",
    OUTLIER: "single long steps",
}

MIN_HOST_SHARE = 0.9
"""A host that launches for this share of a step is hardly ahead of its device."""


@dataclass(frozen=True)
class Loss:
    """Time not spent on training. `step_ns` is its cost, spread over all steps of the figures.

    `share` is its part of a step of the figures, or of all time if it is that of some steps only.
    """

    kind: str
    step_ns: Estimate
    share: float
    evidence: str
    is_apart: bool = False
    """True if it is of steps that the figures exclude."""


@dataclass(frozen=True)
class Losses:
    """What a run loses, the costliest first."""

    found: tuple[Loss, ...] = ()
    missing: str = ""
    """Why some time that is not spent on training cannot be told, or an empty text."""


def find_losses(
    basis: PhaseBasis, costs: RunCosts, steps_seen: int, *, has_pipeline: bool
) -> Losses:
    """Return the parts that train nothing and take a noticeable share of the time.

    Rare work that took a tenth of all time, such as evaluation, may have an interval from zero on.
    So the lower end counts only for what was not measured itself, but is left over.
    """
    parts = list(estimate_parts(costs, costs.parts))
    meanings = {**MEANINGS}
    if has_pipeline:
        meanings[Phase.OTHER.value] = OTHER_OF_PIPELINE
    found = [*_lost_apart(costs, steps_seen)]
    if basis.clock is not PhaseClock.LAUNCH:  # else the device may have worked meanwhile
        found += _lost_in_steps(parts, basis, costs, meanings)
    found.sort(key=lambda loss: -loss.step_ns.value)
    return Losses(tuple(found), _why_missing(parts, costs, basis.clock))


def _lost_in_steps(
    parts: Sequence[PartEstimate],
    basis: PhaseBasis,
    costs: RunCosts,
    meanings: Mapping[str, str],
) -> Iterator[Loss]:
    for name, step_ns, share in parts:
        if name in TRAINS or (name == UNKNOWN and not costs.knows_phases):
            continue  # most of what is unknown is the training, which a log does not split
        least = share.low if name == UNKNOWN else share.value
        if share.judged and least and least > NEGLIGIBLE:
            words = meanings.get(name, "") + _pieces(name, costs)
            late = basis.late_rank
            if name == Phase.ALLREDUCE.value and late is not None:
                waiting = f"{percent(late.share, 0)} of the waiting is for it"
                words += f"; rank {late.rank} is late, {waiting}"
            yield Loss(name, step_ns, share.value, words)


def _lost_apart(costs: RunCosts, steps_seen: int) -> Iterator[Loss]:
    """Yield the extra time of steps that are excluded from the figures."""
    wall_ns = float(costs.wall_ns.mean() / costs.ranks) if costs.steps else math.nan
    mean_ns = wall_ns + sum(each.excess_ns for each in costs.apart)
    for each in costs.apart:
        if each.reason in _COSTLY_STEPS and each.excess_ns > NEGLIGIBLE * wall_ns > 0:
            words = (
                f"{each.steps:,} of {steps_seen:,} steps;"
                " their extra time, spread over all steps, and its share of all time"
            )
            share = each.excess_ns / mean_ns  # one step may cost more than all others
            yield Loss(each.reason, Estimate(each.excess_ns), share, words, is_apart=True)


def _why_missing(parts: Sequence[PartEstimate], costs: RunCosts, clock: PhaseClock) -> str:
    """Return why the losses may not be all, or an empty text."""
    if clock is PhaseClock.LAUNCH:
        return "without device times, the device may work while the host waits"
    if not any(share.judged for _, _, share in parts):
        return f"intervals need {plural(costs.steps_needed, 'more step')}"
    if costs.knows_phases:
        return _why_host_hides(costs)
    known = [name for name, _, _ in parts if name not in {*TRAINS, UNKNOWN}]
    words = " and ".join(known)
    if not words:
        return "the run does not split its steps"
    return f"the run splits its steps into {words} and the rest only"


def _why_host_hides(costs: RunCosts) -> str:
    """Return why nobody knows how long the device worked in its phases, or an empty text."""
    busy_ns = sum(float(costs.host[phase].sum()) for phase in WORKS if phase in costs.host)
    busy = busy_ns / float(costs.wall_ns.sum())
    if busy <= MIN_HOST_SHARE:
        return ""
    return (
        f"the host is in phases for {percent(busy, 0)} of a step: it launches too slowly, or it "
        "waits for the device there; kernels of some steps (--kernels) show which"
    )


def _pieces(name: str, costs: RunCosts) -> str:
    """Return what is inside of a part, the longest first."""
    inside = sorted(
        estimate_parts(costs, costs.inside.get(name, {})), key=lambda each: -each[1].value
    )
    words = ""
    for piece, ns, _ in inside:
        if ns.value:
            words += f"{', ' if words else ': '}{piece} {duration(ns.value)}"
    return words
