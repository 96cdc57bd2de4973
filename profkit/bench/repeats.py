"""One repeat of a cell, and the fields of a row that the repeats give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.analysis.matrix import NS_A_SECOND
from profkit.frame.costs import RunCosts
from profkit.frame.run_frame import frame_of
from profkit.trace import RunManifest, Trace


@dataclass(frozen=True)
class BenchedRun:
    """One repeat of a cell."""

    path: Path
    manifest: RunManifest
    costs: RunCosts
    samples: int
    """The samples of all recorded steps, on all ranks."""

    steps_s: float
    """The time from the beginning of the first step to the end of the last."""

    nodes: int = 1
    """The machines that took part."""


def read_run(path: Path) -> BenchedRun:
    """Read one repeat."""
    trace = Trace.open(path)
    costs = frame_of(trace).costs
    steps = trace.steps
    length_ns = int(steps["end_ns"].to_numpy().max()) - int(steps["start_ns"].to_numpy().min())
    samples = int(steps["sample_count"].to_numpy().sum())
    nodes = sum(rank.manifest.local_rank == 0 for rank in trace.ranks)
    seconds = length_ns / NS_A_SECOND
    return BenchedRun(path, trace.manifest, costs, samples, seconds, max(1, nodes))


def describe_runs(runs: Sequence[BenchedRun]) -> dict[str, object]:
    """Return the fields of a row that its runs give."""
    values: dict[str, object] = {"steps": 0}
    steps, logs, durations_ns = 0, [], []
    for run in runs:
        steps += run.costs.steps
        log = run.path.with_name(f"{run.path.name}.log")
        if log.exists():
            logs.append(log.name)
        if run.manifest.ended_ns is not None:
            durations_ns.append(run.manifest.ended_ns - run.manifest.created_ns)
    if durations_ns:
        values["model_run_time"] = sum(durations_ns) / NS_A_SECOND
    if runs:
        first = runs[0].manifest
        packages = first.environment.get("packages")
        values.update(
            log_file=" ".join(logs) or None, steps=steps, precision=first.config.get("precision")
        )
        for suffix in ("paddle-gpu", "paddle", ""):  # the last one found counts
            if isinstance(packages, Mapping) and packages.get(first.framework + suffix):
                values["frame_version"] = str(packages[first.framework + suffix])
    return values
