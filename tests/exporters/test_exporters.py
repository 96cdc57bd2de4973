"""Exports are read back with official and standard libraries, and compared with the run."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profkit import cli
from profkit.errors import UsageError
from profkit.exporters._timeline import Slice, nesting
from profkit.exporters.base import Window, choose_steps, open_window
from profkit.exporters.chrome import microseconds
from profkit.exporters.csv import cell
from profkit.importers.kineto import IMPORTER
from profkit.plugins import EXPORTERS
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.importers.conftest import Import, import_files, two_steps, write_trace

__all__ = ["import_files"]  # the fixture


@pytest.fixture
def window(tmp_path: Path, import_files: Import) -> Window:
    """A run with kernels, launches and collectives, all of it."""
    path = write_trace(
        tmp_path / "job.json", two_steps(), baseTimeNanoseconds=1_700_000_000_000_000_000
    )
    return open_window(Trace.open(import_files(IMPORTER, path)[0].run), "all")


def test_chrome_keeps_every_nanosecond(window: Window, tmp_path: Path) -> None:
    for name in ("out.json", "out.json.gz"):
        EXPORTERS.load("chrome").write(window, tmp_path / name)
    text = (tmp_path / "out.json").read_text()
    assert gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode() == text
    events = json.loads(text, parse_float=Fraction)["traceEvents"]
    found = sorted(
        (int(event["ts"] * 1000), int(event["dur"] * 1000), event["name"])
        for event in events
        if event["ph"] == "X" and event["cat"] == "gemm"
    )
    shift = window.shifts[0]
    kernels = [row for row in window.tables["kernels"].to_pylist() if row["category"] == "gemm"]
    assert found == sorted(
        (row["start_ns"] + shift, row["end_ns"] - row["start_ns"], row["name"]) for row in kernels
    )
    assert (
        Counter(event["ph"] for event in events)["s"]
        == Counter(event["ph"] for event in events)["f"]
        > 0
    )


def test_readings_that_are_no_numbers_leave_the_chrome_trace_json(tmp_path: Path) -> None:
    """A metric of an evaluation without a detection is one."""
    window = open_window(Trace.open(synthetic_trace(tmp_path / "run", steps=20)), "all")
    samples = window.tables["samples"]
    values = samples["value"].to_pylist()
    values[:3] = math.nan, math.inf, -math.inf
    place = samples.schema.get_field_index("value")
    samples = samples.set_column(place, "value", pa.array(values, pa.float64()))
    window = dataclasses.replace(window, tables={**window.tables, "samples": samples})
    path = tmp_path / "run.json"
    EXPORTERS.load("chrome").write(window, path)

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    events = json.loads(path.read_text(), parse_constant=refuse)["traceEvents"]
    assert sum(event["ph"] == "C" for event in events) == len(values) - 3


def test_what_goes_out_as_chrome_comes_in_again(
    window: Window, tmp_path: Path, import_files: Import
) -> None:
    EXPORTERS.load("chrome").write(window, tmp_path / "again.json.gz")
    (made,) = import_files(IMPORTER, tmp_path / "again.json.gz")
    assert made.rows["steps"] == 1


def test_parquet_and_csv_hold_the_tables(window: Window, tmp_path: Path) -> None:
    EXPORTERS.load("parquet").write(window, tmp_path / "parquet")
    EXPORTERS.load("csv").write(window, tmp_path / "csv")
    for name, table in window.tables.items():
        if table.num_rows:
            assert (
                pq.read_table(tmp_path / "parquet" / f"{name}.parquet").to_pylist()
                == table.to_pylist()
            )
            with open(tmp_path / "csv" / f"{name}.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            assert [row["start_ns"] for row in rows] == [
                str(value) for value in table["start_ns"].to_pylist()
            ]


def test_a_cell_is_no_formula() -> None:
    assert [
        cell(value) for value in ("=cmd()", "+1", "-1", "@x", "plain", -1, None, [1, 2, 3])
    ] == ["'=cmd()", "'+1", "'-1", "'@x", "plain", -1, None, "1x2x3"]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [("", [5, 6, 7]), ("all", [5, 6, 7]), ("6", [6]), ("6:", [6, 7]), (":6", [5]), ("5:7", [5, 6])],
)
def test_steps_are_chosen(wanted: str, chosen: list[int]) -> None:
    assert choose_steps([5, 6, 7], wanted) == chosen


@pytest.mark.parametrize("wanted", ["9", "x", "1:2", "a:b"])
def test_steps_that_are_not_there_are_told(wanted: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        choose_steps([5, 6, 7], wanted)


def test_a_window_holds_its_steps_alone(tmp_path: Path) -> None:
    trace = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=30))
    part = open_window(trace, "10:12")
    assert set(part.tables["steps"]["step"].to_pylist()) >= {10, 11}
    assert 0 < part.rows["spans"] < trace.spans.num_rows / 5


def test_slices_that_overlap_without_nesting_part() -> None:
    outer, inner, across = Slice(0, 10, "a", ""), Slice(2, 5, "b", ""), Slice(4, 12, "c", "")
    assert nesting([across, inner, outer]) == [[outer, inner], [across]]
    assert nesting([Slice(0, 5, "a", ""), Slice(5, 9, "b", "")]) == [
        [Slice(0, 5, "a", ""), Slice(5, 9, "b", "")]
    ]


def test_microseconds_are_exact() -> None:
    assert [microseconds(ns) for ns in (0, 1, 999, 1_712_195_495_519_689_047, -1_500)] == [
        "0.000",
        "0.001",
        "0.999",
        "1712195495519689.047",
        "-1.500",
    ]


def test_a_run_without_stacks_has_none_to_export(
    window: Window, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "out")
    assert cli.main(["export", str(window.trace.path), "--stacks", "-w", output]) == 2
    told = capsys.readouterr().err
    assert "record with --lines on" in told
    assert "about" not in told  # there is no size of what is refused
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("name", sorted({*EXPORTERS.names()} - {"stacks"}))
def test_the_verb_tells_the_size_before_and_after(
    name: str, window: Window, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert (
        cli.main(["export", str(window.trace.path), "--format", name, "-w", str(output), "--json"])
        == 0
    )
    told = capsys.readouterr()
    made = json.loads(told.out)
    assert "about" in told.err
    assert made["bytes"] > 0
    assert made["steps"] == [4, 5]
    if getattr(EXPORTERS.load(name), "replaces", False):
        return
    assert cli.main(["export", str(window.trace.path), "--format", name, "-w", str(output)]) == 2
    assert "exists already" in capsys.readouterr().err
