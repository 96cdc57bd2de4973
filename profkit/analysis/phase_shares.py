"""The parts of a run's steps as figures with intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from profkit.frame.costs import RunCosts
from profkit.frame.estimate import Estimate, Ints, estimate_ratios

PartEstimate: TypeAlias = tuple[str, Estimate, Estimate]
"""A part's name, its time per step and rank, and its share of a step."""


@dataclass(frozen=True)
class PhaseShare:
    """A phase's part of the steps' wall time."""

    name: str
    share: Estimate
    step_ns: Estimate
    host_ns: float | None = None
    """With device times, the host's time: it launched the work of the phase, or waited."""


def phases_of(costs: RunCosts) -> tuple[PhaseShare, ...]:
    """Return the parts of a ledger as phases."""
    phases = []
    for name, step_ns, share in estimate_parts(costs, costs.parts):
        host_ns = costs.host.get(name)
        mean_ns = None
        if host_ns is not None:
            mean_ns = float(host_ns.mean() / costs.ranks)
        phases.append(PhaseShare(name, share, step_ns, mean_ns))
    return tuple(phases)


def estimate_parts(costs: RunCosts, parts: Mapping[str, Ints]) -> Iterator[PartEstimate]:
    if not parts or not costs.steps:
        return
    ns = np.stack(list(parts.values())).astype(np.float64)
    wall = np.broadcast_to(costs.wall_ns.astype(np.float64), ns.shape)
    ones = np.full(ns.shape, float(costs.ranks))
    shares = np.arange(2 * len(parts)) >= len(parts)
    found = estimate_ratios(np.concatenate([ns, ns]), np.concatenate([ones, wall]), shares=shares)
    for name, time, share in zip(parts, found[: len(parts)], found[len(parts) :], strict=True):
        yield name, _within(time, math.inf), _within(share, 1.0)


def _within(found: Estimate, most: float) -> Estimate:
    """Return an estimate whose interval is possible for a part of all steps together.

    On a device, work of a step may end in the next one, so that a single step has too much of one
    part and less than nothing of another.
    """
    if found.low is None or found.high is None or not 0.0 <= found.value <= most:
        return found
    return dataclasses.replace(found, low=max(found.low, 0.0), high=min(found.high, most))
