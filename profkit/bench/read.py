"""A matrix of runs, read and compared with itself and with published figures."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from profkit.analysis.config_join import join_config
from profkit.analysis.matrix import NS_A_SECOND, Cell, Setting, invert
from profkit.analysis.published import published_cells
from profkit.bench.effects import Effects, find_effects
from profkit.bench.repeats import BenchedRun, describe_runs, read_run
from profkit.bench.run import Plan, Progress
from profkit.bench.timings import Timing, groups_of, published_timings, time_cells
from profkit.frame.costs import RunCosts
from profkit.text import plural
from profkit.trace import RunManifest

AXES_OF_A_CELL = (
    *("world_size", "batch_size", "global_batch_size", "precision", "loader", "threads", "lr"),
    *("amp", "rank", "reduced"),
)
"""Settings that differ between runs because their cells do."""

SAME_THROUGHOUT = (
    *("cpu", "cpu_count", "device", "gpu_models", "nvidia_driver", "python", "packages."),
    *("profkit_version", "image_size", "data", "workers", "prefetch", "memory_format", "compile"),
)
"""The beginnings of the settings that must be the same in all runs of a matrix."""

_RECORD = (
    "log_file model_name mission_name direction_id run_mode index gpu_num FINAL_RESULT "
    "JOB_FAIL_FLAG UNIT log_with_profiler profiler_path model_branch model_commit batch_size "
    "fp_item convergence_value convergence_key ips speed_unit device_num model_run_time "
    "frame_commit frame_version"
)
"""The fields of the published reports' database records, and of their successor."""

_FURTHER = (
    "ips_low ips_high time_per_sample_per_gpu_ms precision loader device repeats repeats_planned "
    "steps statistic failure"
)

ROW_FIELDS = (*_RECORD.split(), *_FURTHER.split())
"""The fields of a row, in order."""


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
        if seconds <= 0:
            return math.nan
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
    frameworks: tuple[str, ...]
    unit: str
    cells: tuple[BenchedCell, ...]
    effects: Effects
    published: tuple[Table, ...]
    notes: tuple[str, ...]

    @property
    def alike(self) -> tuple[tuple[BenchedCell, Cell], ...]:
        """Pairs of our cells and published ones of the same size and kind of precision."""
        found = []
        for own, table in itertools.product(self.cells, self.published):
            for cell in table.cells:
                ours, theirs = own.cell.setting, cell.setting
                if (
                    own.cell.measured
                    and cell.measured
                    and (ours.gpus, ours.batch_size) == (theirs.gpus, theirs.batch_size)
                    and ours.mixed == theirs.mixed
                ):
                    found.append((own, cell))
        return tuple(found)


def read_published(workload: str, title: str) -> Benched:
    """Return the published figures alone."""
    cells = published_cells(workload)
    return Benched(workload, title, (), "GPU", (), find_effects(()), _tables(cells), ())


def read_matrix(
    plan: Plan, title: str, progress: Progress, added: Mapping[Setting, Sequence[Path]]
) -> Benched:
    """Read the runs of a matrix, cell by cell; `added` are runs that were measured elsewhere."""
    runs: dict[Setting, list[BenchedRun]] = {}
    costs: dict[Setting, list[RunCosts]] = {}
    manifests = []
    for setting in sorted({*plan.settings, *added}):
        runs[setting], costs[setting] = [], []
        own, _ = progress.of(setting)
        for path in (*own, *added.get(setting, ())):
            run = read_run(path)
            runs[setting].append(run)
            costs[setting].append(run.costs)
            manifests.append(run.manifest)
    timings = time_cells(costs)
    by_setting = {timing.setting: timing for timing in timings}
    benched, cells = [], []
    for setting, repeats in runs.items():
        cell = _describe_cell(plan.workload, setting, repeats)
        timing = by_setting.get(setting)
        if timing is not None:
            throughput = invert(timing.total, NS_A_SECOND * setting.gpus)
            cell = dataclasses.replace(cell, throughput=throughput)
        planned = len(added.get(setting, ()))
        if setting in plan.settings:
            planned += plan.repeats
        _, why = progress.of(setting)
        benched.append(BenchedCell(cell, timing, tuple(repeats), planned, why))
        cells.append(benched[-1].cell)
    return Benched(
        plan.workload,
        title,
        tuple(dict.fromkeys(map(attrgetter("framework"), cells))),
        plan.unit,
        tuple(benched),
        find_effects(timings),
        _tables(published_cells(plan.workload)),
        tuple(_unlike_machines(manifests)),
    )


def _describe_cell(workload: str, setting: Setting, runs: Sequence[BenchedRun]) -> Cell:
    """Return a cell without its figure: where it was measured, and of what its figure is."""
    device, steps, nodes = "", 0, 1
    for run in runs:
        steps += run.costs.steps
        nodes = max(nodes, run.nodes)
    if runs:
        device = str(runs[0].manifest.config.get("device", ""))
        if device == "cpu":
            device = str(runs[0].manifest.environment.get("cpu", ""))
    words = f"{plural(steps, 'steady step')} of {plural(len(runs), 'run')}"
    return Cell(
        workload,
        setting.framework,
        device,
        setting,
        statistic=f"samples of all {words} over their time",
        source="here",
        nodes=nodes,
    )


def _tables(cells: Iterable[Cell]) -> tuple[Table, ...]:
    """Return a table for each framework and device of a source, the reports' own first."""
    tables = []
    for own in groups_of(cells, attrgetter("framework", "device", "source")):
        first = own[0]
        effects = find_effects(published_timings(own))
        tables.append(Table(first.framework, first.device, first.source, tuple(own), effects))
    return tuple(tables)


def _unlike_machines(manifests: Sequence[RunManifest]) -> Iterator[str]:
    """Yield how machines or versions differ, such as after a matrix was resumed elsewhere."""
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
    found: list[Mapping[str, object]] = []
    for each in view.cells:
        setting, throughput = each.cell.setting, each.cell.throughput
        values: dict[str, object] = {
            "model_name": f"{view.workload}_bs{setting.batch_size}_{setting.precision}",
            "mission_name": view.title,
            "direction_id": 0,
            "run_mode": "sp" if setting.gpus == 1 else "mp",
            "index": 1,
            "gpu_num": setting.gpus,
            "JOB_FAIL_FLAG": int(len(each.runs) < each.planned),
            "UNIT": each.cell.unit,
            "batch_size": setting.batch_size,
            "fp_item": setting.precision,
            "speed_unit": each.cell.unit,
            "device_num": f"N{each.cell.nodes}C{setting.gpus}",
            "ips_low": throughput.low,
            "ips_high": throughput.high,
            "loader": setting.loader,
            "device": each.cell.device or None,
            "repeats": len(each.runs),
            "repeats_planned": each.planned,
            "failure": each.why or None,
            **describe_runs(each.runs),
        }
        if each.cell.measured:
            values["FINAL_RESULT"] = values["ips"] = throughput.value
        if each.timing is not None:
            values["time_per_sample_per_gpu_ms"] = each.timing.total.value / 1e6
        if each.runs:
            values["statistic"] = each.cell.statistic
        row = {name: values.get(name) for name in ROW_FIELDS}
        if setting.gpus != 1:
            del row["log_with_profiler"], row["profiler_path"]
        found.append(row)
    return found
