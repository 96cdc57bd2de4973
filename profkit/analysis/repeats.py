"""Groups and pools several runs of one side of a comparison."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from profkit.analysis.config_join import HARMLESS, join_config
from profkit.errors import UsageError
from profkit.frame.apart import Apart
from profkit.frame.costs import OWN, RunCosts
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Ints, mean_of
from profkit.frame.selection import Selection
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.trace.folders import session_of

_ALIKE = ("batch_size", "global_batch_size", "precision", "image_size")
"""Configured values that repeats of one job have in common."""


def check_repeats(traces: Sequence[Trace]) -> None:
    """Raise `UsageError` if the runs are no repeats of one job."""
    settings = []
    for trace in traces:
        manifest = trace.manifest
        known = {
            "workload": manifest.workload,
            "framework": manifest.framework,
            "ranks": manifest.world_size,
        }
        for name in _ALIKE:
            known[name] = manifest.config.get(name)
        settings.append({name: safe_text(str(value)) for name, value in known.items()})
    for name, value in settings[0].items():
        for other, found in zip(traces, settings, strict=True):
            if found[name] != value:
                raise UsageError(
                    f"{traces[0].name} and {other.name} are no repeats of one job:"
                    f" their {name} differs; name one run, or repeats alone"
                )


def group_repeats(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Group repeats of one job, in the order of the first of each.

    No knob, version or variable that can affect their speed differs within a group, and they are of
    one session of `profkit run --repeats`, or of none.
    """
    groups: list[list[Trace]] = []
    for trace in traces:
        for group in groups:
            if session_of(group[0].manifest) != session_of(trace.manifest):
                continue
            # Traces of other tools do not name their job, so nothing shows that it is the same.
            if "imported_from" in trace.manifest.config and not trace.manifest.workload:
                continue
            differences = join_config(group[0].manifest, trace.manifest)
            if all(difference.rows in HARMLESS for difference in differences):
                group.append(trace)
                break
        else:
            groups.append([trace])
    return groups


def pool_costs(runs: Sequence[RunCosts], began_ns: Sequence[int] = ()) -> RunCosts:
    """Concatenate the steps of all runs, with the splits that all of them know.

    `began_ns` says when each run that has steps began, if that is known.
    """
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
        began_ns=tuple(began_ns),
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
