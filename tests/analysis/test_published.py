"""The published figures are complete and sourced, and their contradictions are found."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from profkit.analysis.estimate import Estimate
from profkit.analysis.matrix import Cell, Setting, column_name, lay_out
from profkit.analysis.published import all_published, published_cells
from profkit.bench.consistency import find_contradictions
from profkit.plugins import WORKLOADS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "published.csv"
NAMES = {
    "HRNetW18": "hrnet_w18",
    "Mask R-CNN": "mask_rcnn",
    "ResNet50V1.5": "resnet50",
    "TSM": "tsm",
}


def kinds(workload: str) -> set[str]:
    return {found.kind for found in find_contradictions(published_cells(workload))}


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


def test_what_the_reports_contradict_themselves_in() -> None:
    assert kinds("hrnet_w18") == {"speed-up of unlike batches", "throughput x time"}
    assert kinds("mask_rcnn") == {"two sources", "more than linear"}
    assert kinds("resnet50") == {"statistic", "one figure, two batches", "two sources", "loader"}
    assert kinds("tsm") == {"throughput x time"}
    assert kinds("psenet") == set()


def test_a_speed_up_that_the_throughputs_do_not_give() -> None:
    (found,) = find_contradictions([cell(1, 17.0), cell(8, 96.0, speed_up=6.65)])
    assert found.kind == "speed-up"
    assert "5.65" in found.words


@pytest.mark.parametrize("printed", [5.65, 5.6, 6.0])
def test_a_speed_up_holds_within_the_digits_that_are_printed(printed: float) -> None:
    assert not find_contradictions([cell(1, 17.0), cell(8, 96.0, speed_up=printed)])


def test_more_than_linear_is_said_only_beyond_the_intervals() -> None:
    one, two, wide = (
        Estimate(10.0, 9.9, 10.1),
        Estimate(24.0, 23.8, 24.2),
        Estimate(24.0, 15.0, 40.0),
    )
    first, second, unsure = (
        dataclasses.replace(cell(gpus, 0.0), throughput=figure)
        for gpus, figure in ((1, one), (2, two), (2, wide))
    )
    (found,) = find_contradictions([first, second])
    assert found.kind == "more than linear"
    assert not find_contradictions([first, unsure])


def test_missing_cells_contradict_nothing() -> None:
    assert not find_contradictions(
        [
            cell(1, float("nan")),
            cell(8, float("nan"), speed_up=8.0, time_to_train_s=1.0, samples_trained=1),
        ]
    )


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
