"""One run for the first screen: speed, parts of a step, and time not spent on training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.phase_shares import estimate_parts
from profkit.analysis.views.pictures import StepPoint, step_points
from profkit.frame.apart import Apart
from profkit.frame.costs import RunCosts
from profkit.frame.estimate import Estimate, Ints
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace

MOST_POINTS = 1_000


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
class RunView:
    """The figures of a run. The `parts` add up to `wall_ns`; `hidden` time overlaps with them."""

    overview: Overview
    wall_ns: float
    parts: tuple[Part, ...]
    hidden: tuple[Part, ...]
    apart: tuple[Apart, ...]
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
        parts.append(Part(part.name, part.step_ns, part.share, shown, host.get(part.name)))
    wall_ns = float(costs.wall_ns.mean() / costs.ranks) if costs.steps else math.nan
    return RunView(
        overview=overview,
        wall_ns=wall_ns,
        parts=tuple(parts),
        hidden=tuple(_estimate(costs, costs.beside)),
        apart=costs.apart,
        points=step_points(trace.steps, costs.selection, places=MOST_POINTS),
    )


def _estimate(costs: RunCosts, parts: Mapping[str, Ints]) -> list[Part]:
    """Estimate each part per step and rank, and its share, from the same resamples."""
    found = []
    for name, step_ns, share in estimate_parts(costs, parts):
        found.append(Part(name, step_ns, share))
    return found
