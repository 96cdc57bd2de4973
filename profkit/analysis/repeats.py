"""Several runs of one side of a comparison: their steps together, and intervals that know how runs of one job differ.

Steps of one run are alike in what that run met: its memory, its neighbours, its place on the machine. So
the interval over all steps is at least the one that the runs' own figures give.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from profkit.analysis.config_join import NONE, Difference, join_config
from profkit.analysis.costs import OWN, Apart, RunCosts
from profkit.analysis.estimate import Estimate, Floats, Ints, student_95
from profkit.analysis.selection import Selection
from profkit.errors import UsageError
from profkit.text import safe_text
from profkit.trace import Trace

_FEW: Mapping[int, float] = {1: 12.706, 2: 4.303}
"""Student's t for two and three runs; from four on it is computed."""

_ALIKE = ("batch_size", "global_batch_size", "precision", "image_size")


def check_repeats(traces: Sequence[Trace]) -> None:
    """A `UsageError` for runs that are no repeats of one job."""
    settings = [_settings(trace) for trace in traces]
    for name, value in settings[0].items():
        other = next(
            (trace for trace, found in zip(traces, settings, strict=True) if found[name] != value),
            None,
        )
        if other is not None:
            raise UsageError(
                f"{traces[0].name} and {other.name} are no repeats of one job: their {name} differs; name one run, or repeats alone"
            )


def group_repeats(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Repeats of one job together, in the order of the first of each: no knob, version or variable that can affect their speed differs."""
    sides: list[list[Trace]] = []
    for trace in traces:
        own = next((side for side in sides if not _affecting(side[0], trace)), None)
        if own is None:
            sides.append([trace])
        else:
            own.append(trace)
    return sides


def _affecting(one: Trace, other: Trace) -> list[Difference]:
    return [each for each in join_config(one.manifest, other.manifest) if each.rows != NONE]


def _settings(trace: Trace) -> dict[str, str]:
    manifest = trace.manifest
    found = {
        "workload": manifest.workload,
        "framework": manifest.framework,
        "ranks": manifest.world_size,
    }
    return {
        name: safe_text(str(value))
        for name, value in (*found.items(), *((name, manifest.config.get(name)) for name in _ALIKE))
    }


def pool_costs(runs: Sequence[RunCosts]) -> RunCosts:
    """The steps of all runs behind each other. What only some of them split is not split."""
    if len(runs) == 1:
        return runs[0]
    known = [run for run in runs if run.steps] or list(runs[:1])
    if not all(OWN in run.parts for run in known):
        known = [run.without_own() for run in known]
    split = set.intersection(*(set(run.inside) for run in known))
    return dataclasses.replace(
        known[0],
        wall_ns=_joined([run.wall_ns for run in known]),
        samples=_joined([run.samples for run in known]),
        parts=_join([run.parts for run in known], known),
        inside={
            name: _join([run.inside[name] for run in known], known)
            for name in known[0].inside
            if name in split
        },
        beside=_join([run.beside for run in known], known),
        selection=Selection(
            np.arange(sum(run.steps for run in known)),
            _add_up([run.selection.left_out for run in runs]),
        ),
        apart=_apart(runs),
        repeats=tuple(run.steps for run in known),
        switched=_mean([run.switched for run in known]),
    )


def _mean(found: Sequence[Estimate | None]) -> Estimate | None:
    """Of independent figures, each as good as the other; null where one of them is."""
    known = [
        (each.value, each.high - each.value)
        for each in found
        if each is not None and each.high is not None
    ]
    if len(known) < len(found):
        return None
    value, half = (
        sum(each for each, _ in known) / len(known),
        math.hypot(*(each for _, each in known)) / len(known),
    )
    return Estimate(value, value - half, value + half)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts)


def _join(parts: Sequence[Mapping[str, Ints]], runs: Sequence[RunCosts]) -> dict[str, Ints]:
    """By name; a run that knows of none has measured that there was none, as all of them know the same phases."""
    names = dict.fromkeys(name for each in parts for name in each)
    return {
        name: _joined(
            [
                each.get(name, np.zeros_like(run.wall_ns))
                for each, run in zip(parts, runs, strict=True)
            ]
        )
        for name in names
    }


def _add_up(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    sums: defaultdict[str, int] = defaultdict(int)
    for each in counts:
        for name, count in each.items():
            sums[name] += count
    return dict(sums)


def _apart(runs: Sequence[RunCosts]) -> tuple[Apart, ...]:
    """Steps are added up; what they would add to a step is the mean over the runs."""
    found: defaultdict[str, list[Apart]] = defaultdict(list)
    for run in runs:
        for each in run.apart:
            found[each.reason].append(each)
    return tuple(
        Apart(
            reason,
            sum(each.steps for each in some),
            sum(each.excess_ns for each in some) / len(runs),
        )
        for reason, some in found.items()
    )


def widen(
    estimates: Sequence[Estimate], numerators: Floats, denominators: Floats, repeats: Sequence[int]
) -> list[Estimate]:
    """The intervals as wide as the repeats' own ratios demand; unchanged for a single run."""
    if len(repeats) < 2:
        return list(estimates)
    starts = np.concatenate([[0], np.cumsum(repeats)[:-1]])
    ratios = np.add.reduceat(numerators, starts, axis=1) / np.add.reduceat(
        denominators, starts, axis=1
    )
    half = _student(len(repeats) - 1) * ratios.std(axis=1, ddof=1) / math.sqrt(len(repeats))
    return [
        _at_least(estimate, float(each)) for estimate, each in zip(estimates, half, strict=True)
    ]


def _student(freedom: int) -> float:
    return _FEW.get(freedom) or student_95(freedom)


def _at_least(estimate: Estimate, half: float) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(
        estimate.value,
        min(estimate.low, estimate.value - half),
        max(estimate.high, estimate.value + half),
    )
