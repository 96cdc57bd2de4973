"""The runs of a job over time: what a sample cost in each, and when that changed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from profkit.analysis.run_series import Course, find_course
from profkit.errors import ProfkitError, UnreadableError
from profkit.frame.device_times import device_kinds
from profkit.frame.notices import NO_END
from profkit.frame.run_frame import frame_of
from profkit.text import plural, safe_text
from profkit.trace import Trace
from profkit.trace.manifest import RunManifest, fits_a_column
from profkit.trace.reader import find_runs
from profkit.vocab import RunState

Setting: TypeAlias = tuple[str, ...]
"""What runs share if their speed can be compared."""

FEWEST_WORDS = 6
"""Words of a setting that describe it. Other versions may write more after them."""

COMMIT_LETTERS = 9

LONGEST_NS = float(2**63)
SHORTEST_NS = 1 / LONGEST_NS
"""The columns of a run hold no other times per sample. Quotients of these are finite."""


@dataclass(frozen=True)
class PastRun:
    """One run of a history. `ns` is the time per sample and rank, as `explain` compares it."""

    name: str
    created_ns: int
    ns: float
    setting: Setting
    commit: str = ""
    per_sample: bool = True
    """False if the run does not report its samples: then a step of a rank stands for one."""


@dataclass(frozen=True)
class History:
    """The comparable runs of a job, oldest first, and where their speed changed."""

    setting: Setting
    runs: tuple[PastRun, ...]
    course: Course


@dataclass(frozen=True)
class Histories:
    """All histories of a folder, the one with the newest run first, and what is not in them."""

    found: tuple[History, ...]
    left_out: tuple[tuple[str, str], ...]
    """The name of each run that has no figure, and why."""


def setting_of(trace: Trace) -> Setting:
    """Return what must be equal: another setting has another speed, and that is no change."""
    manifest = trace.manifest
    config, environment = manifest.config, manifest.environment
    # The settings of a job that 'profkit run' started name no device, but its ranks do.
    values = [config.get("precision"), config.get("device") or device_kinds(trace)]
    values += [config.get(name) for name in ("batch_size", "samples_per_step")]
    values += [environment.get(name) for name in ("cpu", "gpu_models")]
    words = [manifest.workload, manifest.framework, plural(manifest.world_size, "rank")]
    return (*words, *("" if value is None else str(value) for value in values))


def describe_setting(setting: Setting) -> str:
    """Return the job and its number of ranks, precision, device and batch in words."""
    job, framework, ranks, precision, device, batch, *_ = setting
    words = [job or "unnamed job", framework, ranks, precision, device]
    if batch:
        words.append(f"batch {batch}")
    return ", ".join(safe_text(word) for word in words if word)


def read_past_run(trace: Trace) -> PastRun:
    """Return what a history knows of a run; raise a `ProfkitError` if it has no figure."""
    costs, manifest = frame_of(trace).costs, trace.manifest
    per_sample = costs.samples_known
    if not per_sample:
        costs = costs.per_step()
    samples = int(costs.samples.sum())
    ns = float(costs.wall_ns.sum()) / samples if samples else math.nan
    if not ns > 0:
        raise ProfkitError("its used steps took no time, or there are none")
    setting, commit = setting_of(trace), commit_of(manifest)
    return PastRun(trace.name, manifest.created_ns, ns, setting, commit, per_sample)


def commit_of(manifest: RunManifest) -> str:
    """Return the beginning of a run's commit, with a `+` if tracked files were changed."""
    revision = manifest.environment.get("revision")
    if not isinstance(revision, dict) or not revision.get("commit"):
        return ""
    changed = "+" if revision.get("dirty") else ""
    return safe_text(str(revision["commit"])[:COMMIT_LETTERS]) + changed


def build_history(runs: Iterable[PastRun]) -> History:
    """Return the history of runs of one setting."""
    ordered = sorted(runs, key=lambda run: (run.created_ns, run.name))
    course = find_course([run.ns for run in ordered])
    return History(ordered[0].setting, tuple(ordered), course)


def read_histories(folder: Path, last: int) -> Histories:
    """Return the histories of a folder of runs, each of the `last` complete runs of a setting."""
    alike: dict[tuple[Setting, bool], list[PastRun]] = {}
    left_out = []
    for path in reversed(find_runs(folder)):
        full = {setting for (setting, _), runs in alike.items() if len(runs) >= last}
        try:
            run = read_complete(path, full)
        except ProfkitError as error:
            left_out.append((safe_text(path.name), str(error)))
            continue
        if run is not None:
            alike.setdefault((run.setting, run.per_sample), []).append(run)
    return Histories(newest_first(alike.values()), tuple(left_out))


def read_complete(path: Path, full: Collection[Setting]) -> PastRun | None:
    """Return a run, or `None` if its history has enough; an error says why it has no figure."""
    trace = Trace.open(path)
    if trace.manifest.state is not RunState.COMPLETE:
        is_running = trace.manifest.state is RunState.RUNNING
        raise ProfkitError(NO_END if is_running else "it was aborted")
    if setting_of(trace) in full:
        return None
    run = read_past_run(trace)
    if trace.changed:
        raise ProfkitError(f"it was changed since it was written ({trace.changed[0]})")
    return run


def newest_first(groups: Iterable[Sequence[PastRun]]) -> tuple[History, ...]:
    found = [build_history(runs) for runs in groups]
    return tuple(sorted(found, key=lambda history: -history.runs[-1].created_ns))


# -- records, which baselines keep -----------------------------------------------------------------


def group_runs(records: Sequence[Any], last: int) -> Histories:
    """Return the histories of the runs that a baseline's file holds."""
    alike: dict[tuple[Setting, bool], list[PastRun]] = {}
    for run in from_records(records):
        alike.setdefault((run.setting, run.per_sample), []).append(run)
    return Histories(newest_first(runs[-last:] for runs in alike.values()), ())


def as_record(run: PastRun) -> dict[str, Any]:
    """Return a run as a baseline's file holds it."""
    return {
        "run": run.name,
        "created_ns": run.created_ns,
        "ns_per_sample": run.ns,
        "setting": list(run.setting),
        "commit": run.commit,
        "per_sample": run.per_sample,
    }


def record_of(path: Path) -> dict[str, Any]:
    """Return the record of a run; raise an `UnreadableError` if it has no figure."""
    trace = Trace.open(path)
    try:
        return as_record(read_past_run(trace))
    except UnreadableError:
        raise
    except ProfkitError as error:
        raise UnreadableError(
            f"{safe_text(str(path))}: {error}, so it makes no baseline; record more steps"
        ) from None


def from_records(records: Sequence[Any]) -> list[PastRun]:
    """Return the runs that a baseline's file holds, without those that are damaged."""
    runs = []
    for record in records:
        if not isinstance(record, dict):
            continue
        ns: Any = record.get("ns_per_sample")
        created_ns = record.get("created_ns")
        setting = record.get("setting")
        is_time = isinstance(ns, int | float) and not isinstance(ns, bool)
        if not is_time or not SHORTEST_NS <= ns <= LONGEST_NS:
            continue
        if type(created_ns) is not int or not fits_a_column(created_ns):
            continue
        if not isinstance(setting, list) or len(setting) < FEWEST_WORDS:
            continue
        name, commit = (safe_text(str(record.get(key, ""))) for key in ("run", "commit"))
        per_sample = record.get("per_sample") is not False
        kind = tuple(map(str, setting))
        runs.append(PastRun(name, created_ns, float(ns), kind, commit, per_sample))
    return runs
