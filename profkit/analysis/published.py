"""Published figures of the five reference systems, with their source and statistic.

`published.csv` has them as public reports state them; `batch_per_gpu` is the batch of one GPU. An
empty throughput is a cell that a report leaves open.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from profkit.analysis.matrix import Cell, Setting
from profkit.frame.estimate import Estimate

UNNAMED: Final = "not named"
"""The statistic of a figure whose report does not name it."""

_TABLE: Final = Path(__file__).with_name("published.csv")


@functools.cache
def all_published() -> tuple[Cell, ...]:
    """Return all published cells of all reference systems."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_read_cell, csv.DictReader(file)))


def published_cells(workload: str) -> tuple[Cell, ...]:
    """Return all that was published of a workload."""
    return tuple(cell for cell in all_published() if cell.workload == workload)


def _read_cell(row: Mapping[str, str]) -> Cell:
    samples = row["samples_trained"]
    return Cell(
        workload=row["workload"],
        framework=row["framework"],
        device=row["device"],
        setting=Setting(
            int(row["gpus"]), row["precision"], int(row["batch_per_gpu"]), row["loader"]
        ),
        throughput=Estimate(float(row["throughput"] or math.nan)),
        unit=row["unit"],
        statistic=row["statistic"],
        source=row["source"],
        nodes=int(row["nodes"]),
        time_to_train_s=_number(row["time_to_train_s"]),
        samples_trained=int(samples) if samples else None,
        accuracy=row["accuracy"],
        speed_up=_number(row["speed_up"]),
        loader_said=row["loader_said"],
    )


def _number(cell: str) -> float | None:
    return float(cell) if cell else None
