"""Pools several runs of one side of a comparison; intervals include run-to-run noise.

Steps of one run share what that run met: its memory, its neighbours, its place on the machine. So
the interval over all steps is at least the one that the runs' own figures give.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from profkit.analysis.apart import Apart
from profkit.analysis.config_join import HARMLESS, join_config
from profkit.analysis.costs import OWN, RunCosts
from profkit.analysis.device_times import PhaseClock
from profkit.analysis.estimate import (
    Estimate,
    Floats,
    Ints,
    estimate_ratios,
    mean_of,
)
from profkit.analysis.selection import Selection
from profkit.analysis.student import student_of_few
from profkit.errors import UsageError
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.trace.folders import group_of

_ALIKE = ("batch_size", "global_batch_size", "precision", "image_size")
"""Configured values that repeats of one job have in common."""


def check_repeats(traces: Sequence[Trace]) -> None:
    """Raise `UsageError` if the runs are no repeats of one job."""
    settings = list(map(_settings, traces))
    for name, value in settings[0].items():
        for other, found in zip(traces, settings, strict=True):
            if found[name] != value:
                raise UsageError(
                    f"{traces[0].name} and {other.name} are no repeats of one job:"
                    f" their {name} differs; name one run, or repeats alone"
                )


def _settings(trace: Trace) -> dict[str, str]:
    manifest = trace.manifest
    found = {
        "workload": manifest.workload,
        "framework": manifest.framework,
        "ranks": manifest.world_size,
    }
    for name in _ALIKE:
        found[name] = manifest.config.get(name)
    return {name: safe_text(str(value)) for name, value in found.items()}


def group_repeats(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Group repeats of one job, in the order of the first of each.

    No knob, version or variable that can affect their speed differs within a group, and `profkit
    run --repeats` gave them no different names.
    """
    groups: list[list[Trace]] = []
    for trace in traces:
        for group in groups:
            # Traces of other tools do not name their job, so nothing shows that it is the same.
            names = {group_of(group[0].manifest), group_of(trace.manifest)} - {""}
            if len(names) > 1:
                continue
            if "imported_from" in trace.manifest.config and not trace.manifest.workload:
                continue
            differences = join_config(group[0].manifest, trace.manifest)
            if all(difference.rows in HARMLESS for difference in differences):
                group.append(trace)
                break
        else:
            groups.append([trace])
    return groups


def pool_costs(runs: Sequence[RunCosts]) -> RunCosts:
    """Concatenate the steps of all runs, with the splits that all of them know."""
    if len(runs) == 1:
        return runs[0]
    known = [run for run in runs if run.steps] or list(runs[:1])
    if not all(OWN in run.parts for run in known):
        known = list(map(RunCosts.without_own, known))
    if not all(run.exchange_timed for run in known):
        known = list(map(RunCosts.without_exchange, known))
    clocks = {run.clock for run in known}
    if len(clocks) > 1:
        known = list(map(RunCosts.of_wall_alone, known))

    def joined(name: str) -> Ints:
        return np.concatenate([getattr(run, name) for run in known])

    def merged(name: str) -> dict[str, Ints]:
        return _join([getattr(run, name) for run in known], known)

    inside = {}
    for name in known[0].inside:
        if all(name in run.inside for run in known):
            inside[name] = _join([run.inside[name] for run in known], known)
    left_out: Counter[str] = Counter()
    for run in runs:
        left_out.update(run.selection.left_out)
    repeats = tuple(run.steps for run in known)
    return dataclasses.replace(
        known[0],
        wall_ns=joined("wall_ns"),
        samples=joined("samples"),
        parts=merged("parts"),
        inside=inside,
        beside=merged("beside"),
        selection=Selection(np.arange(sum(repeats)), dict(left_out)),
        apart=_pool_apart(runs),
        repeats=repeats,
        clock=clocks.pop() if len(clocks) == 1 else PhaseClock.MIXED,
        host=merged("host"),
        switched=mean_of([run.switched for run in known]),
    )


def _join(parts: Sequence[Mapping[str, Ints]], runs: Sequence[RunCosts]) -> dict[str, Ints]:
    """Concatenate the runs' parts by name.

    All runs know the same phases, so one without a part has measured that there was none.
    """
    columns: dict[str, list[Ints]] = {}
    for each in parts:
        for name in each:
            columns[name] = []
    for each, run in zip(parts, runs, strict=True):
        for name, column in columns.items():
            column.append(each.get(name, np.zeros_like(run.wall_ns)))
    return {name: np.concatenate(column) for name, column in columns.items()}


def _pool_apart(runs: Sequence[RunCosts]) -> tuple[Apart, ...]:
    """Add up the excluded steps; their excess per step is the mean over the runs."""
    steps: dict[str, int] = {}
    excess_ns: dict[str, float] = {}
    for run in runs:
        for each in run.apart:
            steps[each.reason] = steps.get(each.reason, 0) + each.steps
            excess_ns[each.reason] = excess_ns.get(each.reason, 0) + each.excess_ns
    return tuple(Apart(reason, steps[reason], excess_ns[reason] / len(runs)) for reason in steps)


def run_ratios(numerators: Floats, denominators: Floats, repeats: Sequence[int]) -> Floats:
    """Return each quantity's ratio in each run, as an array of (quantity, run)."""
    counts = repeats or (numerators.shape[1],)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    above = np.add.reduceat(numerators, starts, axis=1)
    return np.asarray(above / np.add.reduceat(denominators, starts, axis=1))


def widen(
    estimates: Sequence[Estimate], numerators: Floats, denominators: Floats, repeats: Sequence[int]
) -> list[Estimate]:
    """Widen the intervals as far as the repeats' own ratios demand."""
    if len(repeats) < 2:
        return list(estimates)
    ratios = run_ratios(numerators, denominators, repeats)
    student = student_of_few(len(repeats) - 1)
    halves = student * ratios.std(axis=1, ddof=1) / math.sqrt(len(repeats))
    least = np.where((numerators >= 0).all(axis=1), 0.0, -math.inf)  # as in `estimate_ratios`
    widened = []
    for estimate, half, lowest in zip(estimates, halves.tolist(), least.tolist(), strict=True):
        if estimate.low is None or estimate.high is None:
            widened.append(estimate)
            continue
        low, high = max(lowest, estimate.value - half), estimate.value + half
        widened.append(Estimate(estimate.value, min(estimate.low, low), max(estimate.high, high)))
    return widened


def widen_difference(delta: Estimate, base: Floats, target: Floats) -> Estimate:
    """Widen the interval of a difference for the noise between runs, by Student's t.

    `base` and `target` hold the figure of each run. Repeats that take turns meet the same noise, so
    sides of equally many are taken to be equally noisy. Otherwise Welch's test allows one side to
    be noisier. The only run of a side is as noisy as the repeats of the other. Without any repeats
    the interval stays as it is.
    """
    spreads: list[tuple[float, float]] = []
    for runs in (base, target):
        if len(runs) > 1 and np.isfinite(runs).all():
            spreads.append((float(runs.var(ddof=1)), len(runs) - 1))
    if not spreads:
        return delta
    (before, freedom), (after, other) = spreads[0], spreads[-1]
    before, after = before / len(base), after / len(target)
    error = before + after
    if len(spreads) > 1 and len(base) == len(target):
        freedom += other
    elif len(spreads) > 1 and error > 0:
        freedom = error**2 / (before**2 / freedom + after**2 / other)
    half = student_of_few(freedom) * math.sqrt(error)
    low, high = delta.value - half, delta.value + half
    if delta.low is not None and delta.high is not None:
        low, high = min(delta.low, low), max(delta.high, high)
    return Estimate(delta.value, low, high, delta.level)


class TimesPerSample(NamedTuple):
    """Time per sample per GPU of each part."""

    within: Sequence[Estimate]
    """With intervals that only know the noise within runs."""
    widened: Sequence[Estimate]
    """With intervals that hold the noise between repeats, too."""
    runs: Floats
    """The time in each run, by part."""


def times_per_sample(
    parts: Mapping[str, Ints], names: Sequence[str], costs: RunCosts
) -> TimesPerSample:
    """Return the time per sample per GPU of each part."""
    if not costs.steps:
        unknown = [Estimate(math.nan)] * len(names)
        return TimesPerSample(unknown, unknown, np.full((len(names), 1), np.nan))
    nothing = np.zeros(costs.steps)
    stacked = np.stack([parts.get(name, nothing) for name in names]).astype(np.float64)
    samples = np.broadcast_to(costs.samples.astype(np.float64), stacked.shape)
    within = estimate_ratios(stacked, samples)
    widened = widen(within, stacked, samples, costs.repeats)
    with np.errstate(divide="ignore", invalid="ignore"):
        return TimesPerSample(within, widened, run_ratios(stacked, samples, costs.repeats))
