"""One run as the terminal interface shows it first: how fast, where a step goes, and what of it trains nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.costs import EVALUATION, INPUT, OUTLIER, REST, Apart, RunCosts, run_costs
from profkit.analysis.estimate import NEGLIGIBLE, Estimate, Ints, estimate_ratios
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.selection import EPOCH_START
from profkit.analysis.views.pictures import StepPoint, step_points
from profkit.text import duration, percent
from profkit.trace import Trace
from profkit.vocab import Phase

_TRAINS = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value, REST)
_COSTLY_STEPS = (EPOCH_START, EVALUATION, OUTLIER)
"""Steps that stand apart because of what the job does in them, and that come again for as long as it trains."""

MOST_POINTS = 1_000


@dataclass(frozen=True)
class Part:
    """A part of a step, as the mean over ranks and steps."""

    name: str
    step_ns: Estimate
    share: Estimate
    inside: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Loss:
    """Time of a run in which nothing is trained. `step_ns` is its cost, spread over all steps that the figures are about."""

    kind: str
    step_ns: Estimate
    share: float
    evidence: str


@dataclass(frozen=True)
class RunView:
    """The figures of a run. The `parts` add up to `wall_ns`; what is `hidden` overlapped with them and is in none."""

    overview: Overview
    wall_ns: float
    parts: tuple[Part, ...]
    hidden: tuple[Part, ...]
    apart: tuple[Apart, ...]
    losses: tuple[Loss, ...]
    points: tuple[StepPoint, ...]


def build_run_view(trace: Trace, ceilings: Ceilings | None = None) -> RunView:
    """The figures of a run, without its kernels: those have a screen of their own."""
    overview = build_overview(trace, ceilings, with_kernels=False)
    costs = run_costs(trace)
    parts = tuple(_parts(costs))
    return RunView(
        overview=overview,
        wall_ns=float(costs.wall_ns.mean() / costs.ranks) if costs.steps else math.nan,
        parts=parts,
        hidden=tuple(_estimate(costs, costs.beside)),
        apart=costs.apart,
        losses=tuple(sorted(_losses(parts, costs, overview), key=lambda loss: -loss.step_ns.value)),
        points=step_points(trace.steps, costs.selection, places=MOST_POINTS),
    )


def _parts(costs: RunCosts) -> Iterator[Part]:
    for part in _estimate(costs, costs.parts):
        inside = tuple(
            each for each in _estimate(costs, costs.inside.get(part.name, {})) if each.step_ns.value
        )
        yield Part(part.name, part.step_ns, part.share, inside)


def _estimate(costs: RunCosts, parts: Mapping[str, Ints]) -> list[Part]:
    """Each part per step and rank, and as a share of the wall, from the same resamples of the steps."""
    if not parts or not costs.steps:
        return []
    ns = np.stack(list(parts.values())).astype(np.float64)
    wall = np.broadcast_to(costs.wall_ns.astype(np.float64), ns.shape)
    ones = np.full(ns.shape, float(costs.ranks))
    found = estimate_ratios(np.concatenate([ns, ns]), np.concatenate([ones, wall]))
    return [Part(name, found[row], found[len(parts) + row]) for row, name in enumerate(parts)]


def _losses(parts: Sequence[Part], costs: RunCosts, overview: Overview) -> Iterator[Loss]:
    """What surely takes more than next to nothing of a step and trains nothing; nothing of a run that cannot be judged."""
    wall = float(costs.wall_ns.mean() / costs.ranks) if costs.steps else 0.0
    for part in parts:
        if part.name not in _TRAINS and part.share.low is not None and part.share.low > NEGLIGIBLE:
            yield Loss(part.name, part.step_ns, part.share.value, _evidence(part, overview))
    for apart in costs.apart:
        if apart.reason in _COSTLY_STEPS and wall > 0 and apart.excess_ns > NEGLIGIBLE * wall:
            words = f"{apart.steps:,} of {overview.steps_seen:,} steps; what they take longer than the others, spread over all steps"
            yield Loss(apart.reason, Estimate(apart.excess_ns), apart.excess_ns / wall, words)


_MEANINGS = {
    INPUT: "the job waits for its next batch",
    UNKNOWN: "wall time that no phase covers",
}


def _evidence(part: Part, overview: Overview) -> str:
    words = _MEANINGS.get(part.name) or (
        Phase(part.name).meaning if part.name in {phase.value for phase in Phase} else ""
    )
    if part.inside:
        words += ": " + ", ".join(
            f"{each.name} {duration(each.step_ns.value)}"
            for each in sorted(part.inside, key=lambda each: -each.step_ns.value)
        )
    late = overview.late_rank
    if part.name == Phase.ALLREDUCE.value and late is not None:
        words += f"; rank {late.rank} is late, {percent(late.share, 0)} of the waiting is for it"
    return words
