"""A matrix of configurations, with a cell per number of GPUs, precision, batch and loader.

A cell's time is per sample per GPU, so that cells of different batches and GPUs compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from profkit.frame.estimate import Estimate

FULL_PRECISIONS: Final = ("fp32", "tf32", "fp64")
NS_A_SECOND: Final = 1e9
NOTHING: Final = Estimate(math.nan)
"""A cell that was not measured; never zero."""


@dataclass(frozen=True, order=True)
class Setting:
    """The configuration of a cell; `batch_size` is per GPU."""

    gpus: int
    precision: str
    batch_size: int
    loader: str = ""
    framework: str = ""
    """Empty in published tables, whose cells name their framework themselves."""

    @property
    def mixed(self) -> bool:
        """True if reports call the precision AMP, under whatever name."""
        return self.precision not in FULL_PRECISIONS


@dataclass(frozen=True)
class Cell:
    """One cell's throughput over all GPUs, with further statements of its source.

    `speed_up` is as the source prints it. `samples_trained` is the number of samples of the
    source's own schedule in `time_to_train_s`. `loader_said` is the loader that the text names, if
    the logs show another one.
    """

    workload: str
    framework: str
    device: str
    setting: Setting
    throughput: Estimate = NOTHING
    unit: str = "samples/sec"
    statistic: str = ""
    source: str = ""
    nodes: int = 1
    time_to_train_s: float | None = None
    samples_trained: int | None = None
    accuracy: str = ""
    speed_up: float | None = None
    loader_said: str = ""

    @property
    def measured(self) -> bool:
        return math.isfinite(self.throughput.value)

    @property
    def sample_ns(self) -> Estimate:
        """Time per sample per GPU."""
        return invert(self.throughput, NS_A_SECOND * self.setting.gpus)


def invert(estimate: Estimate, factor: float) -> Estimate:
    """Divide `factor` by the estimate, which turns a rate into a time and a time into a rate."""
    if not estimate.value > 0:
        return NOTHING
    low = high = None
    if estimate.high is not None and estimate.high > 0:
        low = factor / estimate.high
    if estimate.low is not None and estimate.low > 0:
        high = factor / estimate.low
    return Estimate(factor / estimate.value, low, high)


@dataclass(frozen=True)
class Grid:
    """Cells in the shape of the reports' tables.

    There is a row for each number of GPUs, and a column for each precision, batch and loader.
    """

    gpus: tuple[int, ...]
    columns: tuple[Setting, ...]
    """The settings of the columns, with 0 GPUs."""

    cells: Mapping[Setting, Cell] = field(default_factory=dict)

    def at(self, gpus: int, column: Setting) -> Cell | None:
        return self.cells.get(at_gpus(column, gpus))


def at_gpus(setting: Setting, gpus: int) -> Setting:
    return replace(setting, gpus=gpus)


def lay_out(cells: Iterable[Cell]) -> Grid:
    """Return the table of cells with different settings; full precision comes before AMP."""
    by_setting = {cell.setting: cell for cell in cells}
    gpus = {setting.gpus for setting in by_setting}
    columns = sorted({at_gpus(setting, 0) for setting in by_setting})
    columns.sort(key=lambda column: column.mixed)
    return Grid(tuple(sorted(gpus)), tuple(columns), by_setting)


def column_name(column: Setting, columns: Sequence[Setting]) -> str:
    """Return a column's heading; it names framework and loader if the table has several."""
    frameworks, loaders = set(), set()
    for other in columns:
        frameworks.add(other.framework)
        loaders.add(other.loader.removeprefix(f"{other.framework} "))
    framework = f"{column.framework} " if len(frameworks) > 1 else ""
    loader = f", {column.loader or 'loader not said'}" if len(loaders) > 1 else ""
    return f"{framework}{column.precision.upper()}(BS={column.batch_size}{loader})"
