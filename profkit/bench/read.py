"""A matrix of runs, read and compared with itself and with published figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.analysis.config_join import join_config
from profkit.analysis.costs import RunCosts, run_costs
from profkit.analysis.matrix import NS_A_SECOND, Cell, Setting, invert
from profkit.analysis.published import published_cells
from profkit.bench.consistency import Contradiction, find_contradictions
from profkit.bench.effects import Effects, find_effects
from profkit.bench.run import Plan, Progress
from profkit.bench.timings import Timing, published_timings, time_cells
from profkit.text import plural
from profkit.trace import RunManifest, Trace

AXES_OF_A_CELL = frozenset(
    {
        "world_size",
        "batch_size",
        "global_batch_size",
        "precision",
        "loader",
        "threads",
        "lr",
        "amp",
        "rank",
        "reduced",
    }
)
"""Settings that differ between runs because their cells do."""

SAME_THROUGHOUT = ("cpu", "cpu_count", "device", "python", "packages.", "profkit_version")
"""The beginnings of the settings that must be the same in all runs of a matrix."""


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


@dataclass(frozen=True)
class BenchedCell:
    """A cell of ours with its repeats; `why` is the reason if some were not measured."""

    cell: Cell
    timing: Timing | None
    runs: tuple[BenchedRun, ...]
    planned: int
    why: str

    @property
    def whole_share(self) -> float:
        """The throughput of the whole runs, as a share of the steady throughput.

        It includes the first steps and all else that the steady throughput excludes.
        """
        samples, seconds = 0, 0.0
        for run in self.runs:
            samples += run.samples
            seconds += run.steps_s
        return samples / seconds / self.cell.throughput.value if seconds > 0 else math.nan


@dataclass(frozen=True)
class Table:
    """The figures that one source published of one framework on one device, and their effects."""

    framework: str
    device: str
    source: str
    cells: tuple[Cell, ...]
    effects: Effects


@dataclass(frozen=True)
class Benched:
    """A matrix with the published figures; `cells` is empty without runs of ours."""

    workload: str
    title: str
    framework: str
    unit: str
    cells: tuple[BenchedCell, ...]
    effects: Effects
    published: tuple[Table, ...]
    contradictions: tuple[Contradiction, ...]
    notes: tuple[str, ...]

    @property
    def alike(self) -> tuple[tuple[BenchedCell, Cell], ...]:
        """Pairs of our cells and published ones of the same size and kind of precision."""
        found = []
        published = [cell for table in self.published for cell in table.cells if cell.measured]
        for own in self.cells:
            for cell in published:
                ours, theirs = own.cell.setting, cell.setting
                if (
                    own.cell.measured
                    and (ours.gpus, ours.batch_size) == (theirs.gpus, theirs.batch_size)
                    and ours.mixed == theirs.mixed
                ):
                    found.append((own, cell))
        return tuple(found)


def read_published(workload: str, title: str) -> Benched:
    """Return the published figures alone."""
    cells = published_cells(workload)
    effects, contradictions = find_effects(()), find_contradictions(cells)
    return Benched(workload, title, "", "GPU", (), effects, _tables(cells), contradictions, ())


def read_matrix(plan: Plan, title: str, progress: Progress) -> Benched:
    """Read the runs of a matrix, cell by cell."""
    runs, costs = {}, {}
    for setting in plan.settings:
        runs[setting] = [_read_run(path) for path in progress.of(setting)]
        costs[setting] = [run.costs for run in runs[setting]]
    timings = time_cells(costs)
    by_setting = {timing.setting: timing for timing in timings}
    cells, manifests = [], []
    for setting in sorted(plan.settings):
        why, timing = progress.why_not(setting), by_setting.get(setting)
        cells.append(_make_cell(plan, setting, timing, runs[setting], why))
        manifests += [run.manifest for run in runs[setting]]
    return Benched(
        plan.workload,
        title,
        plan.framework,
        plan.unit,
        tuple(cells),
        find_effects(timings),
        _tables(published_cells(plan.workload)),
        find_contradictions([each.cell for each in cells]),
        tuple(_unlike_machines(manifests)),
    )


def _read_run(path: Path) -> BenchedRun:
    trace = Trace.open(path)
    costs = run_costs(trace)
    steps = trace.steps
    length_ns = int(steps["end_ns"].to_numpy().max()) - int(steps["start_ns"].to_numpy().min())
    samples = int(steps["sample_count"].to_numpy().sum())
    return BenchedRun(path, trace.manifest, costs, samples, length_ns / NS_A_SECOND)


def _make_cell(
    plan: Plan, setting: Setting, timing: Timing | None, runs: Sequence[BenchedRun], why: str
) -> BenchedCell:
    device, steps = "", 0
    for run in runs:
        steps += run.costs.steps
    if runs:
        device = str(runs[0].manifest.config.get("device", ""))
        if device == "cpu":
            device = str(runs[0].manifest.environment.get("cpu", ""))
    words = f"{plural(steps, 'steady step')} of {plural(len(runs), 'run')}"
    cell = Cell(
        plan.workload,
        plan.framework,
        device,
        setting,
        unit="samples/sec",
        statistic=f"samples of all {words} over their time",
        source="here",
    )
    if timing is not None:
        throughput = invert(timing.total, NS_A_SECOND * setting.gpus)
        cell = dataclasses.replace(cell, throughput=throughput)
    return BenchedCell(cell, timing, tuple(runs), plan.repeats, why)


def _tables(cells: Iterable[Cell]) -> tuple[Table, ...]:
    """Return a table for each framework and device of a source, the reports' own first."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.framework, cell.device, cell.source), []).append(cell)
    tables = []
    for key, own in groups.items():
        tables.append(Table(*key, tuple(own), find_effects(published_timings(own))))
    return tuple(tables)


def _unlike_machines(manifests: Sequence[RunManifest]) -> Iterator[str]:
    """Yield how machine or versions differ between runs, as if a matrix was resumed elsewhere."""
    seen: dict[str, set[str]] = {}
    for other in manifests[1:]:
        for each in join_config(manifests[0], other):
            if each.name not in AXES_OF_A_CELL and each.name.startswith(SAME_THROUGHOUT):
                seen.setdefault(each.name, set()).update((each.base, each.target))
    for name, values in seen.items():
        yield f"the runs differ in {name}: {' and '.join(sorted(values))}"


def rows(view: Benched) -> list[Mapping[str, object]]:
    """Return a row for each cell, with the fields of the published reports' database records.

    What these records have no field for follows after `frame_version`.
    """
    return [_row(view, each) for each in view.cells]


def _row(view: Benched, each: BenchedCell) -> Mapping[str, object]:
    setting, throughput = each.cell.setting, each.cell.throughput
    steps, logs, duration_ns = 0, [], None
    for run in each.runs:
        steps += run.costs.steps
        logs.append(f"{run.path.name}.log")
        if run.manifest.ended_ns is not None:
            duration_ns = (duration_ns or 0) + run.manifest.ended_ns - run.manifest.created_ns
    run_mode, profiler = "mp", {}
    if setting.gpus == 1:
        run_mode, profiler = "sp", {"log_with_profiler": None, "profiler_path": None}
    row: dict[str, object] = {
        "log_file": " ".join(logs) or None,
        "model_name": f"{view.workload}_bs{setting.batch_size}_{setting.precision}",
        "mission_name": view.title,
        "direction_id": 0,
        "run_mode": run_mode,
        "index": 1,
        "gpu_num": setting.gpus,
        "FINAL_RESULT": None,
        "JOB_FAIL_FLAG": int(len(each.runs) < each.planned),
        "UNIT": each.cell.unit,
        **profiler,
        "model_branch": None,
        "model_commit": None,
        "batch_size": setting.batch_size,
        "fp_item": setting.precision,
        "convergence_value": None,
        "convergence_key": None,
        "ips": None,
        "speed_unit": each.cell.unit,
        "device_num": f"N{each.cell.nodes}C{setting.gpus}",
        "model_run_time": None,
        "frame_commit": None,
        "frame_version": None,
        "ips_low": throughput.low,
        "ips_high": throughput.high,
        "time_per_sample_per_gpu_ms": None,
        "precision": None,
        "loader": setting.loader,
        "device": each.cell.device or None,
        "repeats": len(each.runs),
        "repeats_planned": each.planned,
        "steps": steps,
        "statistic": None,
        "failure": each.why or None,
    }
    if each.cell.measured:
        row["FINAL_RESULT"] = row["ips"] = throughput.value
    if duration_ns is not None:
        row["model_run_time"] = duration_ns / NS_A_SECOND
    if each.timing is not None:
        row["time_per_sample_per_gpu_ms"] = each.timing.total.value / 1e6
    if each.runs:
        first = each.runs[0].manifest
        row["frame_version"] = _frame_version(first)
        row["precision"] = first.config.get("precision")
        row["statistic"] = each.cell.statistic
    return row


def _frame_version(manifest: RunManifest) -> str | None:
    """Return the version of the framework's package, whichever of its packages is installed."""
    packages = manifest.environment.get("packages")
    if not isinstance(packages, Mapping):
        return None
    for suffix in ("", "paddle", "paddle-gpu"):
        version = packages.get(manifest.framework + suffix)
        if version:
            return str(version)
    return None
