"""Throughput, step time and phases of a run: of its used steps, or exact over all of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from profkit.analysis.estimate import Estimate, estimate_ratios
from profkit.analysis.frame import RunFrame
from profkit.analysis.phase_shares import PhaseShare, phases_of
from profkit.analysis.selection import lacks_spans
from profkit.analysis.thinned import find_thinned

_MOST_RANKS = 100_000
"""A larger number of ranks that a row speaks for is a mistake in the file."""


def find_figures(frame: RunFrame) -> dict[str, Any]:
    """Return throughput, step time and phases, over all steps if only sums of some were kept."""
    trace = frame.trace
    thinned = find_thinned(trace)
    throughput, step_ns, phases = _estimate(frame)
    if frame.basis.costs:
        phases = phases_of(frame.basis.costs)
    found = {"throughput": throughput, "step_ns": step_ns, "phases": phases}
    if thinned is None:
        return {**found, "steps_seen": len(frame.numbers)}
    host_ns = {part.name: part.host_ns for part in phases}
    exact = []
    for part in thinned.phases:
        exact.append(dataclasses.replace(part, host_ns=host_ns.get(part.name)))
    return {
        "throughput": thinned.throughput,
        "step_ns": thinned.step_ns,
        "phases": tuple(exact),
        "steps_seen": thinned.steps,
        "thinned": thinned,
    }


def _estimate(frame: RunFrame) -> tuple[Estimate, Estimate, tuple[PhaseShare, ...]]:
    """Return throughput, step time and shares, all from the same resamples of the steps."""
    trace, times = frame.trace, frame.times(frame.selection.steps)
    count = len(times.wall_ns)
    if not count:
        return Estimate(math.nan), Estimate(math.nan), ()
    # A log of rank 0 may count all cards' samples, or only its own.
    ranks_per_row = trace.manifest.config.get("rows_speak_for_ranks")
    if not isinstance(ranks_per_row, int) or isinstance(ranks_per_row, bool):
        ranks_per_row = 1
    ranks_per_row = min(max(1, ranks_per_row), _MOST_RANKS)
    parts = len(times.names)
    wall, ones = times.wall_ns[None, :], np.ones((1, count))
    samples = times.samples[None, :] * ranks_per_row
    walls, single_steps = np.repeat(wall, parts, axis=0), np.repeat(ones, parts, axis=0)
    shares = np.isin(np.arange(2 + 2 * parts), np.arange(2, 2 + parts))
    throughput, step_ns, *rest = estimate_ratios(
        np.concatenate([samples, wall, times.parts, times.parts]),
        np.concatenate([wall / 1e9, ones, walls, single_steps]),
        shares=shares,
    )
    if not times.samples.any():
        # Other tools' traces do not say how many samples there were, which is not zero samples.
        throughput = Estimate(math.nan)
    phases = []
    for row, name in enumerate(times.names):
        phases.append(PhaseShare(name, rest[row], rest[parts + row]))
    return throughput, step_ns, () if lacks_spans(trace) else tuple(phases)
