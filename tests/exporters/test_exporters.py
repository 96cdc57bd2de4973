"""Exports are read back with official and standard libraries, and compared with the run."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
import sys
import types
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profkit import cli
from profkit.errors import UsageError
from profkit.exporters._timeline import Slice, nesting, tracks
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


@pytest.fixture(scope="module")
def official() -> Any:
    """Return Perfetto's own message classes.

    Older protobuf libraries, which Paddle asks for, lack a check that these classes call.
    """
    pytest.importorskip("perfetto", reason="the official library is not installed")
    protobuf: Any = pytest.importorskip("google.protobuf")
    if not hasattr(protobuf, "runtime_version"):
        stub: Any = types.ModuleType("google.protobuf.runtime_version")
        stub.Domain = types.SimpleNamespace(PUBLIC=0)
        stub.ValidateProtobufRuntimeVersion = lambda *_: None
        protobuf.runtime_version = sys.modules["google.protobuf.runtime_version"] = stub
    from perfetto.protos.perfetto.trace import (  # type: ignore[import-untyped,unused-ignore]
        perfetto_trace_pb2,
    )

    return perfetto_trace_pb2


def _read_back(official: Any, path: Path) -> tuple[dict[int, str], list[Any]]:
    """The tracks' names by uuid, and all track events with their names in clear."""
    trace = official.Trace()
    trace.ParseFromString(path.read_bytes())
    assert trace.packet[0].sequence_flags == 1
    names: dict[int, str] = {}
    labels: dict[int, str] = {}
    events = []
    for packet in trace.packet:
        assert not packet._unknown_fields if hasattr(packet, "_unknown_fields") else True
        names |= {each.iid: each.name for each in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            found = packet.track_descriptor
            labels[found.uuid] = (
                found.thread.thread_name or found.process.process_name or found.name
            )
        if packet.HasField("track_event"):
            events.append(
                (packet.timestamp, packet.track_event, names.get(packet.track_event.name_iid, ""))
            )
    return labels, events


def test_perfetto_reads_what_was_written(official: Any, window: Window, tmp_path: Path) -> None:
    EXPORTERS.load("perfetto").write(window, tmp_path / "out.pftrace")
    labels, events = _read_back(official, tmp_path / "out.pftrace")
    kinds = Counter(official.TrackEvent.Type.Name(event.type) for _, event, _ in events)
    slices = [
        (track.label, each)
        for track in tracks(window)
        if not track.instants
        for each in track.slices
    ]
    assert kinds["TYPE_SLICE_BEGIN"] == kinds["TYPE_SLICE_END"] == len(slices)
    begun = sorted(
        (time, labels[event.track_uuid], name)
        for time, event, name in events
        if event.type == event.TYPE_SLICE_BEGIN
    )
    assert begun == sorted((each.start_ns, label, each.name) for label, each in slices)
    ended = sorted(
        (time, labels[event.track_uuid])
        for time, event, _ in events
        if event.type == event.TYPE_SLICE_END
    )
    assert ended == sorted((each.end_ns, label) for label, each in slices)


def test_perfetto_flows_join_launches_and_kernels(
    official: Any, window: Window, tmp_path: Path
) -> None:
    EXPORTERS.load("perfetto").write(window, tmp_path / "out.pftrace")
    _, events = _read_back(official, tmp_path / "out.pftrace")
    out = {flow: (time, name) for time, event, name in events for flow in event.flow_ids}
    into = {
        flow: (time, name) for time, event, name in events for flow in event.terminating_flow_ids
    }
    launched = [row for row in window.tables["kernels"].to_pylist() if row["launch_ns"] is not None]
    assert set(out) == set(into)
    assert len(out) == len(launched) > 0
    assert all(out[flow][0] <= into[flow][0] and out[flow][1] == into[flow][1] for flow in out)


def test_perfetto_counters(official: Any, tmp_path: Path) -> None:
    trace = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=30))
    whole = open_window(trace, "all")
    EXPORTERS.load("perfetto").write(whole, tmp_path / "out.pftrace")
    _, events = _read_back(official, tmp_path / "out.pftrace")
    values = sorted(
        event.double_counter_value for _, event, _ in events if event.type == event.TYPE_COUNTER
    )
    assert values == sorted(trace.samples["value"].to_pylist())


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
    assert "record with --stacks loop" in told
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
