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
        seconds = sum(run.steps_s for run in self.runs)
        if seconds <= 0:
            return math.nan
        samples = sum(run.samples for run in self.runs)
        return samples / seconds / self.cell.throughput.value


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
                if own.cell.measured and _same(own.cell.setting, cell.setting):
                    found.append((own, cell))
        return tuple(found)


def _same(own: Setting, published: Setting) -> bool:
    theirs = published.gpus, published.batch_size, published.mixed
    return (own.gpus, own.batch_size, own.mixed) == theirs


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
    steps = plural(sum(run.costs.steps for run in runs), "steady step")
    cell = Cell(
        plan.workload,
        plan.framework,
        _device(runs),
        setting,
        unit="samples/sec",
        statistic=f"samples of all {steps} of {plural(len(runs), 'run')} over their time",
        source="here",
    )
    if timing is not None:
        throughput = invert(timing.total, NS_A_SECOND * setting.gpus)
        cell = dataclasses.replace(cell, throughput=throughput)
    return BenchedCell(cell, timing, tuple(runs), plan.repeats, why)


def _device(runs: Sequence[BenchedRun]) -> str:
    """Return the device of a cell's first run; without a GPU, it is the processor."""
    if not runs:
        return ""
    manifest = runs[0].manifest
    device = str(manifest.config.get("device", ""))
    return str(manifest.environment.get("cpu", "")) if device == "cpu" else device


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
    setting, timing = each.cell.setting, each.timing
    throughput = each.cell.throughput
    durations_ns = []
    for run in each.runs:
        if run.manifest.ended_ns is not None:
            durations_ns.append(run.manifest.ended_ns - run.manifest.created_ns)
    ips = throughput.value if each.cell.measured else None
    first = each.runs[0].manifest if each.runs else None
    alone = {"log_with_profiler": None, "profiler_path": None} if setting.gpus == 1 else {}
    return {
        "log_file": " ".join(f"{run.path.name}.log" for run in each.runs) or None,
        "model_name": f"{view.workload}_bs{setting.batch_size}_{setting.precision}",
        "mission_name": view.title,
        "direction_id": 0,
        "run_mode": "sp" if setting.gpus == 1 else "mp",
        "index": 1,
        "gpu_num": setting.gpus,
        "FINAL_RESULT": ips,
        "JOB_FAIL_FLAG": int(len(each.runs) < each.planned),
        "UNIT": each.cell.unit,
        **alone,
        "model_branch": None,
        "model_commit": None,
        "batch_size": setting.batch_size,
        "fp_item": setting.precision,
        "convergence_value": None,
        "convergence_key": None,
        "ips": ips,
        "speed_unit": each.cell.unit,
        "device_num": f"N{each.cell.nodes}C{setting.gpus}",
        "model_run_time": sum(durations_ns) / NS_A_SECOND if durations_ns else None,
        "frame_commit": None,
        "frame_version": _frame_version(first) if first else None,
        "ips_low": throughput.low,
        "ips_high": throughput.high,
        "time_per_sample_per_gpu_ms": timing.total.value / 1e6 if timing else None,
        "precision": first.config.get("precision") if first else None,
        "loader": setting.loader,
        "device": each.cell.device or None,
        "repeats": len(each.runs),
        "repeats_planned": each.planned,
        "steps": sum(run.costs.steps for run in each.runs),
        "statistic": each.cell.statistic if each.runs else None,
        "failure": each.why or None,
    }


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
