"""Earlier runs of the jobs that are compared, and how much runs of one job differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.config_join import HARMLESS, join_config
from profkit.errors import ProfkitError
from profkit.explain.policy import POLICY
from profkit.frame.columns import durations
from profkit.frame.costs import MOST_OUTLIERS_SHARE, OUTLIER_FACTOR
from profkit.frame.run_frame import frame_of
from profkit.frame.student import student_of_few
from profkit.trace import RunManifest, Trace
from profkit.trace.folders import find_runs
from profkit.vocab import RunState

MOST_READ = 8
"""Earlier runs of a side that are read, the newest first: reading takes time."""

MOST_LOOKED_AT = 200
"""Runs of a folder whose configuration is looked at, the newest first."""

FEWEST_DIFFERENCES = 5
"""The median of fewer differences between neighbours is too uncertain."""

MEDIAN_OF_NORMAL = 0.6745
"""The median of the absolute value of a normal variable, in standard deviations."""

FREEDOM_OF_MEDIAN = 0.37
"""A median is as uncertain as a mean over this share of the values."""

_CODE = "revision."
"""The commit of a job's code; the runs of a job that changes from day to day are all its runs."""


class Spread(NamedTuple):
    """The noise between runs of one job, from the runs before those that are compared."""

    half: float
    """Half the 95 % interval of the difference of two such runs, as a share of their time."""
    runs: int


def spread_of_earlier(base: Trace, target: Trace) -> Spread | None:
    """Return how much earlier runs of both sides differ, or `None` if they are too few.

    If both sides are one job, the target is compared with the base and the runs before both. The
    median difference between neighbours counts: it is noise, even if a change of the code made
    some later runs faster. If they differ by more than runs of one job do, most were changed.
    """
    before_ns = max(base.manifest.created_ns, target.manifest.created_ns)
    is_one_job = _is_same_job(base.manifest, target.manifest)
    differences: list[float] = []
    for trace in (base,) if is_one_job else (base, target):
        runs = [trace, *_earlier_runs(trace, [base, target], before_ns)]
        runs.sort(key=lambda run: run.manifest.created_ns)
        paces = [_pace_ns(run) for run in runs]
        logs = np.log([pace for pace in paces if pace > 0 and math.isfinite(pace)])
        differences += np.abs(np.diff(logs)).tolist()
    if len(differences) < FEWEST_DIFFERENCES:
        return None
    error = float(np.median(differences)) / MEDIAN_OF_NORMAL
    student = student_of_few(FREEDOM_OF_MEDIAN * len(differences))
    half = math.expm1(student * error)
    return Spread(half, len(differences)) if half <= POLICY.most_of_earlier else None


def _earlier_runs(trace: Trace, compared: Sequence[Trace], before_ns: int) -> Iterator[Trace]:
    """Yield the newest complete runs of a run's job in its folder, less those compared."""
    folder = trace.path.resolve().parent
    known = {each.path.resolve() for each in compared}
    found = 0
    for path in find_runs(folder)[: -MOST_LOOKED_AT - 1 : -1]:
        if path in known or found == MOST_READ:
            continue
        try:
            manifest = RunManifest.read(path)
            is_earlier = manifest.created_ns < before_ns and manifest.state is RunState.COMPLETE
            if is_earlier and _is_same_job(trace.manifest, manifest):
                earlier = Trace.open(path)
                if earlier.steps.num_rows:
                    found += 1
                    yield earlier
        except (ProfkitError, OSError, pa.ArrowInvalid):
            continue  # a damaged run says nothing of the noise


def _is_same_job(first: RunManifest, second: RunManifest) -> bool:
    """Return true if nothing differs that can affect the speed, except for committed code.

    Nobody knows what uncommitted changes of the code were.
    """
    for manifest in (first, second):
        revision = manifest.environment.get("revision")
        if isinstance(revision, dict) and revision.get("dirty"):
            return False
    for each in join_config(first, second):
        if each.rows not in HARMLESS and not each.name.startswith(_CODE):
            return False
    return True


def _pace_ns(trace: Trace) -> float:
    """Return the time per sample, or per step if the job has no samples, without outliers."""
    used = pa.array(frame_of(trace).selection.steps.tolist(), pa.int64())
    steps = trace.steps.filter(pc.is_in(trace.steps["step"], used))
    length = durations(steps).astype(np.float64)
    if not len(length):
        return math.nan
    far = length > OUTLIER_FACTOR * np.median(length)
    kept = np.ones(len(length), dtype=bool)
    if far.mean() <= MOST_OUTLIERS_SHARE:
        kept = ~far
    samples = float(steps["sample_count"].to_numpy()[kept].sum())
    return float(length[kept].sum()) / (samples or float(kept.sum()))
