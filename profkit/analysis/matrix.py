"""A matrix of configurations: one cell for each number of GPUs, precision, batch size and loader.

A cell's time is per sample per GPU, so that cells of different batches and GPUs compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from profkit.analysis.estimate import Estimate

FULL_PRECISIONS: Final = ("fp32", "tf32")
NS_A_SECOND: Final = 1e9
NOTHING: Final = Estimate(math.nan)
"""A cell that was not measured; never zero."""


@dataclass(frozen=True, order=True)
class Setting:
    """What makes a cell; `batch_size` is of one GPU."""

    gpus: int
    precision: str
    batch_size: int
    loader: str = ""

    @property
    def mixed(self) -> bool:
        """Whether it is what reports call AMP, under whatever name."""
        return self.precision not in FULL_PRECISIONS


@dataclass(frozen=True)
class Cell:
    """One cell's throughput over all GPUs, whoever measured it, and what its source says besides.

    `speed_up` is as the source prints it. `samples_trained` is what the source's own schedule comes to in
    `time_to_train_s`. `loader_said` is what the text claims, where the logs say something else.
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
    """`factor` divided by what was estimated: a time for a rate, and a rate for a time."""
    if not estimate.value > 0:
        return NOTHING
    low, high = (
        factor / bound if bound is not None and bound > 0 else None
        for bound in (estimate.high, estimate.low)
    )
    return Estimate(factor / estimate.value, low, high)


@dataclass(frozen=True)
class Grid:
    """Cells in the shape of the reports' tables: a row for each number of GPUs, a column for precision, batch and loader."""

    gpus: tuple[int, ...]
    columns: tuple[Setting, ...]
    """Each with no GPUs in it."""

    cells: Mapping[Setting, Cell] = field(default_factory=dict)

    def at(self, gpus: int, column: Setting) -> Cell | None:
        return self.cells.get(at_gpus(column, gpus))


def at_gpus(setting: Setting, gpus: int) -> Setting:
    return Setting(gpus, setting.precision, setting.batch_size, setting.loader)


def lay_out(cells: Iterable[Cell]) -> Grid:
    """The table of these cells, of which no two are of one setting; full precision stands before AMP."""
    by_setting = {cell.setting: cell for cell in cells}
    columns = {at_gpus(setting, 0) for setting in by_setting}
    return Grid(
        tuple(sorted({setting.gpus for setting in by_setting})),
        tuple(sorted(columns, key=_place)),
        by_setting,
    )


def _place(column: Setting) -> tuple[bool, str, int, str]:
    return column.mixed, column.precision, column.batch_size, column.loader


def column_name(column: Setting, loaders: Sequence[str]) -> str:
    """As the reports head their columns; the loader is named where the table has several."""
    loader = f", {column.loader or 'loader not said'}" if len(set(loaders)) > 1 else ""
    return f"{column.precision.upper()}(BS={column.batch_size}{loader})"
