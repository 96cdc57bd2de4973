"""How a job scales over its runs: throughput, speed-up, efficiency, and the factors that it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profkit.analysis.costs import INPUT, RunCosts
from profkit.analysis.estimate import Estimate, Floats, divide, estimate_ratios, scale
from profkit.analysis.exposed import WAITING
from profkit.analysis.repeats import widen
from profkit.explain.meeting import Meeting
from profkit.vocab import Phase

FACTORS = ("computation", "input", "load balance", "exposed communication")


@dataclass(frozen=True)
class ScalingRow:
    """One run beside the first: its efficiency is the product of its `factors`, exactly."""

    name: str
    gpus: int
    throughput: Estimate
    speed_up: Estimate
    efficiency: Estimate
    factors: Mapping[str, Estimate]
    waiting_known: bool
    """False where waiting cannot be told from transfer: then it is part of the communication."""

    meeting: Meeting | None = None
    """Where its ranks wait for each other; `None` for a single rank, and where nothing was recorded of it."""

    @property
    def largest_loss(self) -> str:
        """The factor that takes most of the efficiency; empty where none does."""
        name = min(self.factors, key=lambda each: self.factors[each].value)
        return name if self.factors[name].value < 1 else ""


def scaling_table(
    runs: Sequence[tuple[str, int, RunCosts]], meetings: Sequence[Meeting | None] = ()
) -> tuple[ScalingRow, ...]:
    """The runs, given as name, GPUs and costs, against the first of them; `meetings` are theirs, where they were looked at."""
    _, base_gpus, base = runs[0]
    first = _levels(base)
    rows = []
    for place, (name, gpus, costs) in enumerate(runs):
        own = _levels(costs)
        efficiency = divide(first[-1], own[-1])
        throughput = divide(_known(gpus * 1e9), own[-1])
        factors = dict(
            zip(FACTORS, _factors(first, own, _shares(base), _shares(costs)), strict=True)
        )
        if not place:
            efficiency, factors = _known(1.0), dict.fromkeys(FACTORS, _known(1.0))
        meeting = meetings[place] if meetings else None
        rows.append(
            ScalingRow(
                name,
                gpus,
                throughput,
                scale(efficiency, gpus / base_gpus),
                efficiency,
                factors,
                _waiting_known(costs),
                meeting,
            )
        )
    return tuple(rows)


def _known(value: float) -> Estimate:
    """What has no uncertainty, such as the first run against itself."""
    return Estimate(value, value, value)


def _factors(
    base: Sequence[Estimate],
    own: Sequence[Estimate],
    base_shares: Sequence[Estimate],
    shares: Sequence[Estimate],
) -> Iterator[Estimate]:
    """Computation by itself; then by how much each further cost makes a step longer, on the base and here."""
    yield divide(base[0], own[0])
    for before, after in zip(base_shares, shares, strict=True):
        yield divide(before, after)


def _stages(costs: RunCosts) -> Floats:
    """The step's time as it grows, cost by cost: computation and all else, then input, waiting, and communication."""
    nothing = np.zeros(costs.steps)
    input_ns = costs.parts.get(INPUT, nothing)
    exchange = costs.parts.get(Phase.ALLREDUCE.value, nothing)
    waiting = costs.inside.get(Phase.ALLREDUCE.value, {}).get(WAITING, nothing)
    computing = costs.wall_ns - input_ns - exchange
    return np.cumsum(
        np.stack([computing, input_ns, waiting, exchange - waiting]).astype(np.float64), axis=0
    )


def _levels(costs: RunCosts) -> list[Estimate]:
    """Each stage per sample per GPU."""
    return _ratios(
        _stages(costs),
        np.broadcast_to(costs.samples.astype(np.float64), (len(FACTORS), costs.steps)),
        costs.repeats,
    )


def _shares(costs: RunCosts) -> list[Estimate]:
    """Each stage after the first as a multiple of the one before."""
    stages = _stages(costs)
    return _ratios(stages[1:], stages[:-1], costs.repeats)


def _ratios(above: Floats, below: Floats, repeats: Sequence[int]) -> list[Estimate]:
    if not (above.shape[1] and below.sum()):
        return [Estimate(math.nan)] * len(above)
    return widen(estimate_ratios(above, below), above, below, repeats)


def _waiting_known(costs: RunCosts) -> bool:
    return Phase.ALLREDUCE.value not in costs.parts or Phase.ALLREDUCE.value in costs.inside
