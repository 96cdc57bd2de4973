"""The published figures are complete and sourced."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from profkit.analysis.matrix import Cell, Setting, column_name, lay_out
from profkit.analysis.published import all_published
from profkit.frame.estimate import Estimate
from profkit.plugins import WORKLOADS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "published.csv"
NAMES = {
    "HRNetW18": "hrnet_w18",
    "Mask R-CNN": "mask_rcnn",
    "ResNet50V1.5": "resnet50",
    "TSM": "tsm",
}


def cell(gpus: int, throughput: float, **changes: object) -> Cell:
    given: dict[str, object] = {
        "workload": "w",
        "framework": "f",
        "device": "d",
        "setting": Setting(gpus, "fp32", 8),
        "throughput": Estimate(throughput),
    }
    return Cell(**{**given, **changes})  # type: ignore[arg-type]  # a test's shorthand


def test_every_system_has_published_cells_and_every_cell_a_source_and_a_statistic() -> None:
    assert {each.workload for each in all_published()} == set(WORKLOADS.names())
    assert all(each.source and each.statistic and each.unit for each in all_published())


def test_a_cell_stands_once_in_each_source() -> None:
    keys = [
        (each.workload, each.framework, each.device, each.setting, each.source)
        for each in all_published()
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
def test_nothing_that_was_published_is_missing() -> None:
    ours = {
        (
            each.workload,
            each.framework,
            each.setting.gpus,
            each.setting.precision,
            each.throughput.value,
        )
        for each in all_published()
    }
    with SHARED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    missing = [
        row
        for row in rows
        if (
            NAMES[row["model"]],
            row["framework"],
            int(row["gpus"]),
            row["precision"],
            float(row["throughput"]),
        )
        not in ours
    ]
    assert rows
    assert not missing


def test_the_table_has_rows_of_gpus_and_columns_of_precision_and_batch() -> None:
    settings = [
        Setting(8, "amp", 4),
        Setting(1, "fp32", 4),
        Setting(1, "amp", 2),
        Setting(8, "fp32", 2),
    ]
    grid = lay_out(cell(setting.gpus, 1.0, setting=setting) for setting in settings)
    assert grid.gpus == (1, 8)
    assert [column_name(column, grid.columns) for column in grid.columns] == [
        "FP32(BS=2)",
        "FP32(BS=4)",
        "AMP(BS=2)",
        "AMP(BS=4)",
    ]
    assert grid.at(1, grid.columns[0]) is None
    assert grid.at(8, grid.columns[0]) is not None
