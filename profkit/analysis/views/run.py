"""One run for the first screen: speed, parts of a step, and time not spent on training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.phase_shares import estimate_parts
from profkit.analysis.views.pictures import StepPoint, step_points
from profkit.frame.apart import Apart
from profkit.frame.costs import EVALUATION, INPUT, OUTLIER, REST, RunCosts
from profkit.frame.device_clock import WORKS
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import NEGLIGIBLE, Estimate, Ints
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import COMPILING, EPOCH_START
from profkit.text import duration, percent, plural
from profkit.trace import Trace
from profkit.vocab import OTHER_OF_PIPELINE, Phase

_TRAINS = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value, REST)
_COSTLY_STEPS = (EPOCH_START, COMPILING, EVALUATION, OUTLIER)
"""Reasons for excluding steps in which the job does something that it will do again."""

_MEANINGS = {
    **{phase.value: phase.meaning for phase in Phase},
    INPUT: "the job waits for its next batch",
    UNKNOWN: "wall time that no phase covers",
}

MOST_POINTS = 1_000

MIN_HOST_SHARE = 0.9
"""A host that launches for this share of a step is hardly ahead of its device."""


@dataclass(frozen=True)
class Part:
    """A part of a step, as the mean over ranks and steps."""

    name: str
    step_ns: Estimate
    share: Estimate
    inside: tuple[Part, ...] = ()
    host_ns: float | None = None
    """With device times, the host's time: it launched the work, or waited."""


@dataclass(frozen=True)
class Loss:
    """Time not spent on training. `step_ns` is its cost, spread over all steps of the figures.

    `share` is its part of a step of the figures, or of all time if it is that of some steps only.
    """

    kind: str
    step_ns: Estimate
    share: float
    evidence: str


@dataclass(frozen=True)
class RunView:
    """The figures of a run. The `parts` add up to `wall_ns`; `hidden` time overlaps with them."""

    overview: Overview
    wall_ns: float
    parts: tuple[Part, ...]
    hidden: tuple[Part, ...]
    apart: tuple[Apart, ...]
    losses: tuple[Loss, ...]
    losses_missing: str
    """Why some time that is not spent on training cannot be told, or an empty text."""
    points: tuple[StepPoint, ...]


def build_run_view(trace: Trace, ceilings: Ceilings | None = None) -> RunView:
    """Return the figures of a run, without its kernels, which have a screen of their own."""
    overview = build_overview(trace, ceilings, with_kernels=False)
    costs = overview.costs or frame_of(trace).costs
    host = {phase.name: phase.host_ns for phase in overview.phases}
    parts = []
    for part in _estimate(costs, costs.parts):
        inside = _estimate(costs, costs.inside.get(part.name, {}))
        shown = tuple(each for each in inside if each.step_ns.value)
        phase = Phase.DATA.value if part.name == INPUT else part.name
        parts.append(Part(part.name, part.step_ns, part.share, shown, host.get(phase)))
    wall_ns = float(costs.wall_ns.mean() / costs.ranks) if costs.steps else math.nan
    losses = _losses(parts, wall_ns, costs, overview)
    return RunView(
        overview=overview,
        wall_ns=wall_ns,
        parts=tuple(parts),
        hidden=tuple(_estimate(costs, costs.beside)),
        apart=costs.apart,
        losses=tuple(sorted(losses, key=lambda loss: -loss.step_ns.value)),
        losses_missing=_why_missing(parts, costs, overview),
        points=step_points(trace.steps, costs.selection, places=MOST_POINTS),
    )


def _estimate(costs: RunCosts, parts: Mapping[str, Ints]) -> list[Part]:
    """Estimate each part per step and rank, and its share, from the same resamples."""
    found = []
    for name, step_ns, share in estimate_parts(costs, parts):
        found.append(Part(name, step_ns, share))
    return found


def _losses(
    parts: Iterable[Part], wall_ns: float, costs: RunCosts, overview: Overview
) -> list[Loss]:
    """Return the parts that train nothing and take a noticeable share of the time.

    Rare work that took a tenth of all time, such as evaluation, may have an interval from zero on.
    So the lower end counts only for what was not measured itself, but is left over.
    """
    found = []
    for part in parts:
        if overview.clock is PhaseClock.LAUNCH:
            break  # the device may have worked while the host waited
        if part.name == UNKNOWN and not costs.knows_phases:
            continue  # most of it is the training, which a log does not split
        share = part.share.low if part.name == UNKNOWN else part.share.value
        if part.name not in _TRAINS and part.share.judged and share and share > NEGLIGIBLE:
            evidence = _evidence(part, overview)
            found.append(Loss(part.name, part.step_ns, part.share.value, evidence))
    mean_ns = wall_ns + sum(each.excess_ns for each in costs.apart)
    for each in costs.apart:
        if each.reason in _COSTLY_STEPS and each.excess_ns > NEGLIGIBLE * wall_ns > 0:
            words = (
                f"{each.steps:,} of {overview.steps_seen:,} steps;"
                " their extra time, spread over all steps, and its share of all time"
            )
            share = each.excess_ns / mean_ns  # one step may cost more than all others
            found.append(Loss(each.reason, Estimate(each.excess_ns), share, words))
    return found


def _why_missing(parts: Iterable[Part], costs: RunCosts, overview: Overview) -> str:
    """Return why the losses may not be all, or an empty text."""
    if overview.clock is PhaseClock.LAUNCH:
        return "without device times, the device may work while the host waits"
    if not any(part.share.judged for part in parts):
        return f"intervals need {plural(costs.steps_needed, 'more step')}"
    if costs.knows_phases:
        return _why_host_hides(costs)
    known = [part.name for part in parts if part.name not in {*_TRAINS, UNKNOWN}]
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


def _evidence(part: Part, overview: Overview) -> str:
    words = _MEANINGS.get(part.name, "")
    if part.name == Phase.OTHER.value and overview.has_pipeline:
        words = OTHER_OF_PIPELINE
    if part.inside:
        pieces = []
        for each in sorted(part.inside, key=lambda each: -each.step_ns.value):
            pieces.append(f"{each.name} {duration(each.step_ns.value)}")
        words += ": " + ", ".join(pieces)
    late = overview.late_rank
    if part.name == Phase.ALLREDUCE.value and late is not None:
        words += f"; rank {late.rank} is late, {percent(late.share, 0)} of the waiting is for it"
    return words
