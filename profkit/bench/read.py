"""A matrix of runs, read and compared with itself and with what was published: the frozen value that all its shapes render."""

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
from profkit.bench.effects import Effects, Timing, find_effects, published_timings, time_cells
from profkit.bench.run import Plan, Progress
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
"""Knobs that differ from cell to cell because the cells do."""

SAME_THROUGHOUT = ("cpu", "cpu_count", "device", "python", "packages.", "profkit_version")


@dataclass(frozen=True)
class BenchedRun:
    """One repeat of a cell."""

    path: Path
    manifest: RunManifest
    costs: RunCosts
    samples: int
    """Of all steps that were recorded, on all ranks."""

    steps_s: float
    """From the first step's beginning to the last one's end."""


@dataclass(frozen=True)
class BenchedCell:
    """A cell of ours, with its repeats; `why` says what kept some from being measured."""

    cell: Cell
    timing: Timing | None
    runs: tuple[BenchedRun, ...]
    planned: int
    why: str

    @property
    def whole_share(self) -> float:
        """What the whole runs came to, first steps and all, as a share of the steady throughput: throughput x time against samples."""
        seconds = sum(run.steps_s for run in self.runs)
        return (
            sum(run.samples for run in self.runs) / seconds / self.cell.throughput.value
            if seconds > 0
            else math.nan
        )


@dataclass(frozen=True)
class Table:
    """What one source has published of one framework on one device, and the effects that it allows."""

    framework: str
    device: str
    source: str
    cells: tuple[Cell, ...]
    effects: Effects


@dataclass(frozen=True)
class Benched:
    """A matrix, with the published figures beside it. Without runs of ours, `cells` is empty."""

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
        """Cells of ours beside published ones of as many GPUs, the same batch and the same kind of precision."""
        theirs = [cell for table in self.published for cell in table.cells if cell.measured]
        return tuple(
            (own, cell)
            for own in self.cells
            for cell in theirs
            if own.cell.measured and _same(own.cell.setting, cell.setting)
        )


def _same(own: Setting, published: Setting) -> bool:
    return (own.gpus, own.batch_size, own.mixed) == (
        published.gpus,
        published.batch_size,
        published.mixed,
    )


def read_published(workload: str, title: str) -> Benched:
    """What was published alone."""
    return Benched(
        workload,
        title,
        "",
        "GPU",
        (),
        find_effects(()),
        _tables(workload),
        find_contradictions(published_cells(workload)),
        (),
    )


def read_matrix(plan: Plan, title: str, progress: Progress) -> Benched:
    """The runs of a matrix, cell by cell."""
    runs = {
        setting: [_read_run(path) for path in progress.of(setting)] for setting in plan.settings
    }
    timings = time_cells(
        {setting: [run.costs for run in repeats] for setting, repeats in runs.items()}
    )
    by_setting = {timing.setting: timing for timing in timings}
    cells = tuple(
        _cell(plan, setting, by_setting.get(setting), runs[setting], progress.why_not(setting))
        for setting in sorted(plan.settings)
    )
    own = find_contradictions([each.cell for each in cells])
    manifests = [run.manifest for each in cells for run in each.runs]
    return Benched(
        plan.workload,
        title,
        plan.framework,
        plan.unit,
        cells,
        find_effects(timings),
        _tables(plan.workload),
        own,
        tuple(_unlike_machines(manifests)),
    )


def _read_run(path: Path) -> BenchedRun:
    trace = Trace.open(path)
    costs = run_costs(trace)
    steps = trace.steps
    seconds = (
        int(steps["end_ns"].to_numpy().max()) - int(steps["start_ns"].to_numpy().min())
    ) / NS_A_SECOND
    return BenchedRun(
        path, trace.manifest, costs, int(steps["sample_count"].to_numpy().sum()), seconds
    )


def _cell(
    plan: Plan, setting: Setting, timing: Timing | None, runs: Sequence[BenchedRun], why: str
) -> BenchedCell:
    cell = Cell(
        plan.workload,
        plan.framework,
        _device(runs),
        setting,
        unit="samples/sec",
        statistic=_statistic(runs),
        source="here",
    )
    if timing is not None:
        cell = dataclasses.replace(
            cell, throughput=invert(timing.total, NS_A_SECOND * setting.gpus)
        )
    return BenchedCell(cell, timing, tuple(runs), plan.repeats, why)


def _statistic(runs: Sequence[BenchedRun]) -> str:
    steps = sum(run.costs.steps for run in runs)
    return f"samples of all {plural(steps, 'steady step')} of {plural(len(runs), 'run')} over their time"


def _device(runs: Iterable[BenchedRun]) -> str:
    """What the cell ran on, by its first run: the processor, where there was no GPU."""
    for run in runs:
        device = str(run.manifest.config.get("device", ""))
        return str(run.manifest.environment.get("cpu", "")) if device == "cpu" else device
    return ""


def _tables(workload: str) -> tuple[Table, ...]:
    """A table for each framework and device of a source; the reports' own stand first."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in published_cells(workload):
        groups.setdefault((cell.framework, cell.device, cell.source), []).append(cell)
    return tuple(
        Table(*key, tuple(own), find_effects(published_timings(own))) for key, own in groups.items()
    )


def _unlike_machines(manifests: Sequence[RunManifest]) -> Iterator[str]:
    """Where the cells were not all measured on one machine with one set of versions, as when a matrix was resumed elsewhere."""
    seen: dict[str, set[str]] = {}
    for other in manifests[1:]:
        for each in join_config(manifests[0], other):
            if each.name not in AXES_OF_A_CELL and each.name.startswith(SAME_THROUGHOUT):
                seen.setdefault(each.name, set()).update((each.base, each.target))
    yield from (
        f"the runs differ in {name}: {' and '.join(sorted(values))}"
        for name, values in seen.items()
    )


def rows(view: Benched) -> list[Mapping[str, object]]:
    """One row a cell, with the fields of the reports' own database record; what the record has no field for follows."""
    return [_row(view, each) for each in view.cells]


def _row(view: Benched, each: BenchedCell) -> Mapping[str, object]:
    setting, timing = each.cell.setting, each.timing
    throughput = each.cell.throughput
    runs_s = [
        run.manifest.ended_ns - run.manifest.created_ns
        for run in each.runs
        if run.manifest.ended_ns is not None
    ]
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
        "FINAL_RESULT": throughput.value if each.cell.measured else None,
        "JOB_FAIL_FLAG": int(len(each.runs) < each.planned),
        "UNIT": each.cell.unit,
        **alone,
        "model_branch": None,
        "model_commit": None,
        "batch_size": setting.batch_size,
        "fp_item": setting.precision,
        "convergence_value": None,
        "convergence_key": None,
        "ips": throughput.value if each.cell.measured else None,
        "speed_unit": each.cell.unit,
        "device_num": f"N{each.cell.nodes}C{setting.gpus}",
        "model_run_time": sum(runs_s) / NS_A_SECOND if runs_s else None,
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
    packages = manifest.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    found = (
        versions.get(name)
        for name in (
            manifest.framework,
            f"{manifest.framework}paddle",
            f"{manifest.framework}paddle-gpu",
        )
        if name
    )
    return next((str(version) for version in found if version), None)
