"""The scaling of a job over its runs: throughput, speed-up, efficiency and its factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profkit.analysis.run_noise import estimate_repeats
from profkit.explain.meeting import Meeting
from profkit.explain.resolution import unlike_clocks
from profkit.frame.costs import DATA, RunCosts
from profkit.frame.device_times import LAUNCHES, PhaseClock
from profkit.frame.estimate import Estimate, Floats, divide, scale
from profkit.frame.exposed import WAITING, WAITING_IN_PIPELINE
from profkit.vocab import Phase

FACTORS = ("computation", "data", "load balance", "exposed communication")
"""The factors of an efficiency, in the order in which a step's time is stacked up."""

EXACTLY_ONE = Estimate(1.0, 1.0, 1.0)
"""The first run compared with itself has no uncertainty."""


@dataclass(frozen=True)
class ScalingRow:
    """One run compared with the first; its efficiency is the product of its `factors`."""

    name: str
    gpus: int
    throughput: Estimate
    speed_up: Estimate
    efficiency: Estimate
    factors: Mapping[str, Estimate]
    waiting_known: bool
    """False if waiting cannot be separated from transfer; then it is part of communication."""

    exchange_timed: bool = True
    """False if the device's wait for the exchange was not timed: it is part of computation."""

    clocks: str = ""
    """The reason why the efficiency has no factors, if the phases or their clocks rule them out."""

    doubt: str = ""
    """The reason why the efficiency cannot be true, or nothing."""

    meeting: Meeting | None = None
    """Where the ranks wait for each other; `None` if there is one rank or nothing was recorded."""

    @property
    def largest_loss(self) -> str:
        """The factor that takes most of the efficiency; empty if none does."""
        known = [name for name, factor in self.factors.items() if math.isfinite(factor.value)]
        name = min(known, key=lambda each: self.factors[each].value, default="")
        return name if name and self.factors[name].value < 1 else ""


def scaling_table(
    runs: Sequence[tuple[str, int, RunCosts]], meetings: Sequence[Meeting | None] = ()
) -> tuple[ScalingRow, ...]:
    """Compare runs, given as name, GPUs and costs, with the first of them."""
    _, base_gpus, base = runs[0]
    rows = []
    for place, (name, gpus, costs) in enumerate(runs):
        exchange_timed = costs.exchange_timed and base.exchange_timed
        before, after = base, costs
        if not exchange_timed:
            before, after = base.without_exchange(), costs.without_exchange()
        base_stages, base_growth = _estimate_stages(before)
        stages, growth = _estimate_stages(after)
        clocks = _why_no_factors(base, costs) if place else ""
        efficiency = EXACTLY_ONE
        factors = dict.fromkeys(FACTORS, EXACTLY_ONE)
        if place:
            efficiency = divide(base_stages[-1], stages[-1])
            factors[FACTORS[0]] = divide(base_stages[0], stages[0])
            for factor, left, right in zip(FACTORS[1:], base_growth, growth, strict=True):
                factors[factor] = divide(left, right)
            if not exchange_timed:
                factors.update(dict.fromkeys(FACTORS[2:], Estimate(math.nan)))
            if clocks:
                factors = dict.fromkeys(FACTORS, Estimate(math.nan))
        exchange_known = Phase.ALLREDUCE.value in costs.inside
        row = ScalingRow(
            name,
            gpus,
            throughput=divide(Estimate(gpus * 1e9, gpus * 1e9, gpus * 1e9), stages[-1]),
            speed_up=scale(efficiency, gpus / base_gpus),
            efficiency=efficiency,
            factors=factors,
            waiting_known=exchange_known or Phase.ALLREDUCE.value not in costs.parts,
            exchange_timed=exchange_timed or not place,
            clocks=clocks,
            meeting=meetings[place] if meetings else None,
        )
        rows.append(row)
    return tuple(rows)


def _why_no_factors(base: RunCosts, target: RunCosts) -> str:
    """Return why the efficiency of two runs cannot be split; empty if it can."""
    if not (base.samples_known and target.samples_known):
        return "a run does not say how many samples its steps have"
    if not (base.knows_phases and target.knows_phases):
        return "a run does not divide its steps into phases"
    if PhaseClock.LAUNCH in (base.clock, target.clock) and base.clock is target.clock:
        return f"no device times: {LAUNCHES}"
    return unlike_clocks(base, target)


def _estimate_stages(costs: RunCosts) -> tuple[list[Estimate], list[Estimate]]:
    """Return each stage per sample per GPU, and the factor from each stage to the next.

    The stages are a step's time as it grows, cost by cost: computation and all else, then data,
    waiting and communication.
    """
    nothing = np.zeros(costs.steps)
    data_ns = costs.parts.get(DATA, nothing)
    exchange = costs.parts.get(Phase.ALLREDUCE.value, nothing)
    inside = costs.inside.get(Phase.ALLREDUCE.value, {})
    waiting = inside.get(WAITING, inside.get(WAITING_IN_PIPELINE, nothing))
    computing = costs.wall_ns - data_ns - exchange
    parts = np.stack([computing, data_ns, waiting, exchange - waiting]).astype(np.float64)
    stages = np.cumsum(parts, axis=0)
    samples = np.broadcast_to(costs.samples.astype(np.float64), stages.shape)
    times = _ratios(stages, samples, costs.repeats)
    return times, _ratios(stages[1:], stages[:-1], costs.repeats)


def _ratios(above: Floats, below: Floats, repeats: Sequence[int]) -> list[Estimate]:
    if not (above.shape[1] and below.sum()):
        return [Estimate(math.nan)] * len(above)
    return estimate_repeats(above, below, repeats)
