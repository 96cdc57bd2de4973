"""The trace contract: rows are read back, across versions, and damage is reported."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.clock import Anchor
from profkit.errors import ExitCode, UnreadableError
from profkit.schema import ABOUT, SCHEMAS, is_name, meaning_of, name_columns, open_schema, unit_of
from profkit.testing import FakeClock, synthetic_trace
from profkit.testing.synthetic import MEAN_PHASE_NS
from profkit.text import safe_text
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, verify
from profkit.trace.files import RankFiles, new_run_folder
from profkit.trace.integrity import this_process
from profkit.trace.reader import LOST_NAME
from profkit.trace.stream import END_OF_STREAM
from profkit.vocab import (
    END_FILE,
    RANK_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    TABLES,
    Integrity,
    RunState,
    rank_folder,
)

ROW_TABLES = tuple(table for table in TABLES if table != "strings")
SHORT_TABLES = tuple(table for table in TABLES if table not in {"sums", "events"})
"""The tables of a run that is too short to be thinned."""

NAMES = ("forward", "naïve ⟨日本⟩ 🚀", "void f<int>[/b](x)", "")
COUNT = len(NAMES)
Columns = dict[str, list[Any]]


def _values(field: pa.Field) -> list[Any]:
    """One list of values of a field's type, with its extremes among them."""
    if is_name(field):
        return list(NAMES)
    if pa.types.is_fixed_size_list(field.type):
        return [[1, 1, 1], [2**31 - 1, 2, 3], [-(2**31), 0, 0], [7, 8, 9]]
    if pa.types.is_string(field.type):
        return list(NAMES)
    if pa.types.is_boolean(field.type):
        return [True, False, True, False]
    if pa.types.is_floating(field.type):
        return [0.0, -1.5e300, 5e-324, 0.1]
    largest = 2 ** (field.type.bit_width - 1) - 1
    return [0, largest, -largest - 1, 42]


def _columns(table: str, *, nulls: bool) -> Columns:
    fields = [field for field in SCHEMAS[table] if field.name != "rank"]
    return {
        field.name: [None] * COUNT if nulls and field.nullable else _values(field)
        for field in fields
    }


def _manifest(rank: int, pid: int = 0) -> RankManifest:
    return RankManifest(rank, platform.node(), pid, "cpu", Anchor(1, 2, 3))


def _write_rank(
    run: Path, rank: int, tables: Mapping[str, Columns], reason: str = "complete"
) -> Path:
    files = RankFiles(run / rank_folder(rank), rank)
    _manifest(rank).write(files.folder)
    for table, columns in tables.items():
        files.write(table, columns)
    files.close(reason)
    assert not files.failure
    return files.folder


def _write_run(run: Path, *ranks: Mapping[str, Columns]) -> Path:
    for rank, tables in enumerate(ranks):
        _write_rank(run, rank, tables)
    RunManifest(workload="test", state=RunState.COMPLETE, world_size=len(ranks)).write(run)
    return run


def _step_columns(count: int, first: int = 0) -> Columns:
    index = list(range(first, first + count))
    return {
        "step": index,
        "start_ns": index,
        "end_ns": index,
        "sample_count": index,
        "instrumented": [True] * count,
    }


def _span_columns(*names: str) -> Columns:
    zeros = [0] * len(names)
    return {
        "phase": list(names),
        "name": list(names),
        "thread": list(names),
        "depth": zeros,
        "start_ns": zeros,
        "end_ns": zeros,
    }


def _only_reason(run: Path, state: Integrity) -> str:
    found = verify(run)
    assert found.state is state, found
    assert len(found.reasons) == 1, found.reasons
    return found.reasons[0]


# --- the schema itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "column"), [(table, field.name) for table in TABLES for field in SCHEMAS[table]]
)
def test_every_column_says_its_unit_and_its_meaning(table: str, column: str) -> None:
    field = SCHEMAS[table].field(column)
    assert unit_of(field)
    assert len(meaning_of(field)) > 5
    assert column.endswith("_ns") == (unit_of(field) == "ns")
    assert unit_of(field) != "bytes" or column.endswith("bytes")


@pytest.mark.parametrize("table", TABLES)
def test_every_table_says_what_it_is_and_begins_with_the_rank(table: str) -> None:
    assert ABOUT[table].endswith(".")
    assert SCHEMAS[table].names[0] == "rank"
    assert SCHEMAS[table].metadata[b"profkit.schema"] == b"%d.%d" % SCHEMA_VERSION
    assert len(set(SCHEMAS[table].names)) == len(SCHEMAS[table])


# --- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", [False, True], ids=["all set", "all null"])
@pytest.mark.parametrize("table", ROW_TABLES)
def test_every_table_reads_back_as_it_was_written(tmp_path: Path, table: str, nulls: bool) -> None:
    columns = _columns(table, nulls=nulls)
    run = _write_run(tmp_path, {table: columns})
    found = Trace.open(run).table(table)
    found.validate(full=True)
    assert found.schema.equals(open_schema(table), check_metadata=True)
    assert found.to_pydict() == {"rank": [0] * COUNT, **columns}
    assert verify(run).state is Integrity.COMPLETE


@pytest.mark.parametrize("table", SHORT_TABLES[:-1])
def test_the_appender_takes_the_columns_in_the_order_of_the_schema(
    tmp_path: Path, table: str
) -> None:
    columns = _columns(table, nulls=False)
    writer = RankWriter(tmp_path, _manifest(0), interval_s=60)
    for row in zip(*columns.values(), strict=True):
        writer.appender(table)(row)
    writer.close()
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    assert Trace.open(tmp_path).table(table)[:COUNT].to_pydict() == {"rank": [0] * COUNT, **columns}
    assert verify(tmp_path).state is Integrity.COMPLETE


def test_arrow_and_numpy_columns_are_taken_as_lists_are(tmp_path: Path) -> None:
    count = 70_000  # more than one batch
    names = pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1, 0] * (count // 4), pa.int32()), pa.array(["sum", "mul"])
    )
    columns: dict[str, Any] = {
        "device": pa.array(["cuda:0"] * count).dictionary_encode(),
        "stream": np.arange(count, dtype=np.int16),
        "start_ns": np.arange(count),
        "end_ns": np.arange(count)[::-1],
        "name": pa.array(["sum"] * count).dictionary_encode(),
        "category": ["other"] * count,
        "op": names,
        "registers": pa.array([None, 1] * (count // 2), pa.int64()),
    }
    files = RankFiles(tmp_path / rank_folder(0), 0)
    files.write("kernels", columns)
    files.close()
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    found = Trace.open(tmp_path).kernels
    assert found["op"][:5].to_pylist() == ["sum", None, "mul", "sum", "sum"]
    assert found["end_ns"].to_pylist() == list(range(count))[::-1]
    assert found["registers"].null_count == count // 2
    assert found["stream"].to_pylist()[-1] == np.int16(np.arange(count, dtype=np.int16)[-1])
    assert verify(tmp_path).rows == count + 4


@pytest.mark.parametrize(
    "values",
    [np.array([2**40]), np.array([2**63], np.uint64), np.array([0.5]), np.array([np.nan])],
    ids=str,
)
def test_a_number_that_does_not_fit_its_column_is_refused_and_never_altered(
    tmp_path: Path, values: Any
) -> None:
    files = RankFiles(tmp_path / rank_folder(0), 0)
    with pytest.raises((ValueError, TypeError, OverflowError)):
        files.write("steps", {**_step_columns(1), "epoch": values})
    files.write("steps", _step_columns(1))
    files.close()
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    assert Trace.open(tmp_path).steps.num_rows == 1
    assert verify(tmp_path).state is Integrity.COMPLETE


def test_ranks_with_different_names_share_one_dictionary(tmp_path: Path) -> None:
    run = _write_run(
        tmp_path,
        {"spans": _span_columns("a", "b")},
        {"spans": _span_columns("c", "b", "a")},
        {"steps": _step_columns(1)},
    )
    spans = Trace.open(run).spans
    assert spans["rank"].to_pylist() == [0, 0, 1, 1, 1]
    assert spans["name"].to_pylist() == ["a", "b", "c", "b", "a"]
    dictionaries = {tuple(chunk.dictionary.to_pylist()) for chunk in spans["name"].chunks}
    assert len(dictionaries) == 1
    assert spans.combine_chunks()["name"].to_pylist() == ["a", "b", "c", "b", "a"]


def test_a_table_that_nobody_wrote_is_empty_and_has_all_columns(tmp_path: Path) -> None:
    run = _write_run(tmp_path, {"steps": _step_columns(2)})
    assert Trace.open(run).kernels.schema.equals(open_schema("kernels"))
    assert Trace.open(run).kernels.num_rows == 0
    (run / rank_folder(0)).rename(tmp_path / "gone")
    assert Trace.open(run).spans.num_rows == 0


def test_names_that_could_steer_a_terminal_are_cleaned_by_the_reader(tmp_path: Path) -> None:
    hostile = ["\x1b]52;c;ZXZpbA==\x07", "\x9b2J", "a\x00b", "\u202egnp.exe", "line\u2028feed\n"]
    found = (
        Trace.open(_write_run(tmp_path, {"spans": _span_columns(*hostile)}))
        .spans["name"]
        .to_pylist()
    )
    assert found == [safe_text(name) for name in hostile]
    assert all(name.isprintable() for name in found)
    assert found[0] == "\\x1b]52;c;ZXZpbA==\\x07"


def test_names_that_are_not_valid_text_keep_their_rows(tmp_path: Path) -> None:
    odd = os.fsdecode(b"/data/caf\xe9.jpg")
    run = _write_run(tmp_path, {"spans": _span_columns("a", odd)})
    assert Trace.open(run).spans["name"].to_pylist() == ["a", "/data/caf\\udce9.jpg"]


# --- older and newer files -----------------------------------------------------------------------


def _written_by_another_version(
    patch: pytest.MonkeyPatch,
    run: Path,
    table: str,
    schema: pa.Schema,
    columns: Columns,
    minor: int,
) -> Path:
    """A run as a profkit would leave it whose contract for `table` is `schema`."""
    name_columns(table)  # fills its cache from our own contract
    with patch.context() as inner:
        inner.setitem(SCHEMAS, table, schema)
        _write_rank(run, 0, {table: columns})
    RunManifest(
        workload="test", state=RunState.COMPLETE, schema_version=(SCHEMA_VERSION[0], minor)
    ).write(run)
    return run


@pytest.mark.parametrize("table", ROW_TABLES)
def test_columns_that_an_older_minor_lacks_read_as_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    required = [field for field in SCHEMAS[table] if not field.nullable]
    run = _written_by_another_version(
        monkeypatch, tmp_path, table, pa.schema(required), _columns(table, nulls=False), 0
    )
    assert verify(run).state is Integrity.COMPLETE
    assert Trace.open(run).table(table).to_pydict() == {
        "rank": [0] * COUNT,
        **_columns(table, nulls=True),
    }


@pytest.mark.parametrize("table", ROW_TABLES)
def test_columns_that_a_newer_minor_adds_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    added = [
        pa.field("aurora", pa.list_(pa.struct([("x", pa.string())]))),
        *SCHEMAS[table],
        pa.field("zeal", pa.decimal128(20, 3)),
    ]
    columns = {
        "aurora": [[{"x": "y"}]] * COUNT,
        **_columns(table, nulls=False),
        "zeal": [1] * COUNT,
    }
    run = _written_by_another_version(monkeypatch, tmp_path, table, pa.schema(added), columns, 7)
    assert verify(run).state is Integrity.COMPLETE
    assert Trace.open(run).table(table).to_pydict() == {
        "rank": [0] * COUNT,
        **_columns(table, nulls=False),
    }


@pytest.mark.parametrize("column", ["rank", "step", "start_ns", "instrumented"])
def test_a_missing_required_column_is_torn_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    schema = pa.schema([field for field in SCHEMAS["steps"] if field.name != column])
    run = _written_by_another_version(monkeypatch, tmp_path, "steps", schema, _step_columns(3), 0)
    assert Trace.open(run).steps.num_rows == 0
    assert f"'{column}'" in _only_reason(run, Integrity.TORN)


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.float64(), pa.timestamp("us"), pa.string()], ids=str
)
def test_a_column_of_another_type_is_torn_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    fields = [
        field.with_type(kind) if field.name == "end_ns" else field for field in SCHEMAS["steps"]
    ]
    columns = {**_step_columns(3), "end_ns": pa.array([0, 1, 2]).cast(kind)}
    run = _written_by_another_version(monkeypatch, tmp_path, "steps", pa.schema(fields), columns, 0)
    assert Trace.open(run).steps.num_rows == 0
    assert "'end_ns'" in _only_reason(run, Integrity.TORN)


def test_a_column_that_stands_twice_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([*SCHEMAS["steps"], SCHEMAS["steps"].field("step")])
    run = _written_by_another_version(monkeypatch, tmp_path, "steps", schema, _step_columns(3), 0)
    assert "'step' stands 2 times" in _only_reason(run, Integrity.TORN)


def test_a_null_where_none_may_be_ends_the_reading_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose = pa.schema([field.with_nullable(True) for field in SCHEMAS["steps"]])
    run = _written_by_another_version(
        monkeypatch, tmp_path, "steps", loose, {**_step_columns(2), "end_ns": [1, None]}, 0
    )
    assert Trace.open(run).steps.num_rows == 0
    assert "'end_ns' has nulls" in _only_reason(run, Integrity.TORN)


@pytest.mark.parametrize("offsets", [[0, 1, 1], [0, -5, 2]], ids=str)
def test_text_that_points_outside_its_buffer_or_is_no_unicode_is_never_touched(
    tmp_path: Path, offsets: list[int]
) -> None:
    run = _write_run(tmp_path, {"spans": _span_columns("a", "b")})
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"\xff\xfe")]
    values = pa.Array.from_buffers(pa.string(), 2, buffers)
    batch = pa.record_batch(
        [pa.array([0, 0], pa.int32()), pa.array([0, 1], pa.int32()), values],
        schema=SCHEMAS["strings"],
    )
    with pa.ipc.new_stream(run / rank_folder(0) / "strings.arrows", batch.schema) as stream:
        stream.write_batch(batch)
    assert "strings" in _only_reason(run, Integrity.TORN)
    assert Trace.open(run).spans["name"].to_pylist() == [LOST_NAME, LOST_NAME]


@pytest.mark.parametrize("read", [Trace.open, verify])
@pytest.mark.parametrize(("major", "remedy"), [(-1, "record it again"), (1, "install a newer")])
def test_another_major_is_refused_by_name(
    tmp_path: Path, read: Any, major: int, remedy: str
) -> None:
    run = _write_run(tmp_path, {"steps": _step_columns(1)})
    RunManifest(workload="test", schema_version=(SCHEMA_VERSION[0] + major, 4)).write(run)
    with pytest.raises(UnreadableError) as error:
        read(run)
    assert error.value.exit_code is ExitCode.UNREADABLE
    place, version = run / RUN_FILE, f"{SCHEMA_VERSION[0] + major}.4"
    limit = f"this profkit reads {SCHEMA_VERSION[0]}.x; {remedy}"
    assert str(error.value).startswith(f"{place}: written in schema {version}, and {limit}")


# --- names ---------------------------------------------------------------------------------------


def test_rows_whose_names_were_lost_say_so(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / rank_folder(0), 0)
    files.write("spans", {**_span_columns("first", "second"), "error": [None, "first"]})
    kept = (files.folder / "strings.arrows").stat().st_size
    files.write("spans", {**_span_columns("third", "first"), "error": [None, "third"]})
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    os.truncate(files.folder / "strings.arrows", kept)
    spans = Trace.open(tmp_path).spans
    assert spans["name"].to_pylist() == ["first", "second", LOST_NAME, "first"]
    assert spans["error"].to_pylist() == [None, "first", None, LOST_NAME]


def test_names_are_all_lost_where_the_list_of_names_is_gone_or_out_of_order(tmp_path: Path) -> None:
    folder = _write_run(tmp_path, {"spans": _span_columns("a", "b")}) / rank_folder(0)
    table = pa.ipc.open_stream(folder / "strings.arrows").read_all()
    with pa.ipc.new_stream(folder / "strings.arrows", table.schema) as stream:
        stream.write_table(table.take([1, 0]))
    assert Trace.open(tmp_path).spans["name"].to_pylist() == [LOST_NAME, LOST_NAME]
    (folder / "strings.arrows").unlink()
    assert Trace.open(tmp_path).spans["name"].to_pylist() == [LOST_NAME, LOST_NAME]
    assert "strings: 0 rows of 2" in _only_reason(tmp_path, Integrity.TORN)


def test_names_of_rows_that_were_refused_do_not_harm_the_names_after_them(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / rank_folder(0), 0)
    files.write("spans", _span_columns("good"))
    for bad in ({"depth": ["deep"]}, {"phase": [7]}, {"end_ns": [None]}):
        with pytest.raises((ValueError, TypeError)):
            files.write("spans", {**_span_columns("bad"), **bad})
    files.write("spans", _span_columns("better"))
    files.close()
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    assert Trace.open(tmp_path).spans["name"].to_pylist() == ["good", "better"]
    assert verify(tmp_path).state is Integrity.COMPLETE


# --- the end record ------------------------------------------------------------------------------


def test_the_end_record_counts_rows_bytes_and_checksum_of_each_file(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / rank_folder(3), 3)
    files.write("steps", _step_columns(5))
    files.write("steps", _step_columns(2))
    files.write("spans", _span_columns("a", "b", "a"))
    files.dropped["kernels"] += 9
    files.close("the job said so")
    end = json.loads((files.folder / END_FILE).read_text())
    assert (end["rank"], end["reason"], end["schema_version"]) == (
        3,
        "the job said so",
        list(SCHEMA_VERSION),
    )
    assert {table: counts["rows"] for table, counts in end["tables"].items()} == {
        "steps": 7,
        "spans": 3,
        "strings": 2,
        "kernels": 0,
    }
    assert end["tables"]["steps"]["batches"] == 2
    assert end["tables"]["kernels"]["dropped"] == 9
    for table in ("steps", "spans", "strings"):
        content = (files.folder / f"{table}.arrows").read_bytes()
        assert content.endswith(END_OF_STREAM)
        assert (end["tables"][table]["bytes"], end["tables"][table]["crc32"]) == (
            len(content),
            zlib.crc32(content),
        )


def test_a_reason_that_is_not_valid_text_does_not_lose_the_end_record(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / rank_folder(0), 0)
    files.close("no such file: " + os.fsdecode(b"caf\xe9"))
    RunManifest(workload=os.fsdecode(b"caf\xe9"), state=RunState.COMPLETE).write(tmp_path)
    assert "stopped capturing" in _only_reason(tmp_path, Integrity.ENDED_EARLY)
    assert Trace.open(tmp_path).ranks[0].end is not None


def test_a_rank_leaves_nothing_but_its_tables_and_records(tmp_path: Path) -> None:
    folder = _write_run(tmp_path, {"spans": _span_columns("a")}) / rank_folder(0)
    assert sorted(file.name for file in folder.iterdir()) == [
        END_FILE,
        RANK_FILE,
        "spans.arrows",
        "strings.arrows",
    ]
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_run_folder_is_never_taken_twice(tmp_path: Path) -> None:
    assert [new_run_folder(tmp_path, "run").name for _ in range(3)] == ["run", "run-2", "run-3"]
    with pytest.raises(FileExistsError):
        _write_run(_write_run(tmp_path / "run", {}), {})


# --- what verify finds ---------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return synthetic_trace(tmp_path / "run", ranks=2, steps=60, kernels_per_step=3, stacks=True)


def test_a_whole_run_is_complete(run: Path) -> None:
    found = verify(run)
    assert (found.state, found.reasons, found.lost, found.dropped) == (Integrity.COMPLETE, (), 0, 0)
    assert {check.table for check in found.tables} == set(SHORT_TABLES)
    assert found.rows == sum(Trace.open(run).table(table).num_rows for table in ROW_TABLES) + sum(
        len(rank.names) - 1 for rank in Trace.open(run).ranks
    )


def test_dropped_rows_are_counted(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, _manifest(0))
    writer.drop("spans", 3)
    writer.drop("steps")
    writer.close()
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    assert verify(tmp_path).dropped == Trace.open(tmp_path).dropped == 4


@pytest.fixture
def open_writer(tmp_path: Path) -> Iterator[RankWriter]:
    """The writer of a run in `tmp_path` that this process owns and has not ended."""
    RunManifest(workload="test", owner=this_process()).write(tmp_path)
    writer = RankWriter(tmp_path, _manifest(0, os.getpid()), interval_s=0.01)
    yield writer
    writer.close()


def test_a_run_whose_owner_lives_is_running(tmp_path: Path, open_writer: RankWriter) -> None:
    found = verify(tmp_path)
    assert found.state is Integrity.RUNNING
    assert "the job is still running" in found.reasons


def test_a_message_that_is_being_written_does_not_make_a_running_run_torn(
    tmp_path: Path, open_writer: RankWriter
) -> None:
    whole = _write_rank(tmp_path / "other", 0, {"steps": _step_columns(40)}) / "steps.arrows"
    (tmp_path / rank_folder(0) / "steps.arrows").write_bytes(whole.read_bytes()[:-100])
    assert verify(tmp_path).state is Integrity.RUNNING


def _dead_process() -> dict[str, object]:
    code = (
        "import json; from profkit.trace.integrity import this_process; "
        "print(json.dumps(this_process()))"
    )
    owner: dict[str, object] = json.loads(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    )
    return owner


@pytest.mark.parametrize(
    "change",
    [{}, {"started": None}, {"pid": 0}, {"pid": "1"}, {"pid": os.getpid(), "started": 1}],
    ids=["dead", "no start known", "pid 0", "no pid", "a later process of its number"],
)
def test_a_run_whose_owner_is_gone_ended_early(tmp_path: Path, change: dict[str, object]) -> None:
    run = _write_run(tmp_path, {"steps": _step_columns(1)})
    RunManifest(workload="test", owner={**_dead_process(), **change}).write(run)
    assert "ended without saying so" in _only_reason(run, Integrity.ENDED_EARLY)


def test_a_run_of_another_host_is_taken_to_be_running(run: Path) -> None:
    RunManifest(
        workload="test", world_size=2, owner={"host": "elsewhere", "pid": 1, "started": 1}
    ).write(run)
    assert verify(run).state is Integrity.RUNNING


def test_an_aborted_run_ended_early_and_says_why(run: Path) -> None:
    RunManifest(
        workload="test", world_size=2, state=RunState.ABORTED, why="CUDA out of memory"
    ).write(run)
    assert "CUDA out of memory" in _only_reason(run, Integrity.ENDED_EARLY)


def test_a_rank_without_an_end_record_ended_early(run: Path) -> None:
    (run / rank_folder(1) / END_FILE).unlink()
    assert "rank 1 wrote no end record" in _only_reason(run, Integrity.ENDED_EARLY)


def test_a_rank_that_stopped_capturing_ended_early_and_says_why(tmp_path: Path) -> None:
    _write_rank(
        tmp_path,
        0,
        {"steps": _step_columns(1)},
        reason="No space left on device while writing spans",
    )
    RunManifest(workload="test", state=RunState.COMPLETE).write(tmp_path)
    assert "No space left on device" in _only_reason(tmp_path, Integrity.ENDED_EARLY)


def test_ranks_that_left_no_folder_are_named(run: Path) -> None:
    RunManifest(workload="test", state=RunState.COMPLETE, world_size=4).write(run)
    assert _only_reason(run, Integrity.ENDED_EARLY) == "ranks 2, 3 left no files"
    assert Trace.open(run).missing_ranks == (2, 3)


@pytest.mark.parametrize("table", SHORT_TABLES[:-1])
def test_a_flipped_byte_anywhere_is_caught(run: Path, table: str) -> None:
    path = run / rank_folder(1) / f"{table}.arrows"
    content = path.read_bytes()
    random = np.random.default_rng(7)
    for at in random.integers(0, len(content), 60):
        path.write_bytes(
            content[:at] + bytes([content[at] ^ (1 << random.integers(0, 8))]) + content[at + 1 :]
        )
        Trace.open(run).table(table)
        assert verify(run).state is Integrity.TORN, at


def test_a_changed_value_in_a_well_formed_file_is_caught_by_the_checksum(run: Path) -> None:
    path = run / rank_folder(0) / "steps.arrows"
    table = pa.ipc.open_stream(path).read_all()
    changed = table.set_column(4, table.schema.field(4), pc.add(table[4], 1))
    with pa.ipc.new_stream(
        path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(changed)
    assert Trace.open(run).steps.num_rows == 120
    assert "checksum" in _only_reason(run, Integrity.TORN)


def test_bytes_after_the_end_are_torn(run: Path) -> None:
    with open(run / rank_folder(0) / "spans.arrows", "ab") as file:
        file.write(b"more")
    assert "4 bytes follow its end" in _only_reason(run, Integrity.TORN)


def test_a_table_that_was_deleted_is_torn_and_its_rows_are_counted_as_lost(run: Path) -> None:
    (run / rank_folder(0) / "spans.arrows").unlink()
    assert "spans: 0 rows of 360 can be read" in _only_reason(run, Integrity.TORN)
    assert verify(run).lost == 360


def test_a_table_that_the_end_record_does_not_know_is_torn(run: Path) -> None:
    path = run / rank_folder(0) / END_FILE
    path.write_text(path.read_text().replace('"steps"', '"stops"'))
    assert "steps" in _only_reason(run, Integrity.TORN)


@pytest.mark.parametrize("name", [RUN_FILE, f"r00001/{RANK_FILE}", f"r00001/{END_FILE}"])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "null",
        '{"tables": 3, "rank": "x", "format": "profkit-run"}',
        "\x00" * 40,
        "[" * 100_000,
    ],
    ids=range(7),
)
def test_a_broken_record_is_torn_and_named(run: Path, name: str, content: str) -> None:
    (run / name).write_text(content)
    assert name in _only_reason(run, Integrity.TORN)


def test_a_rank_without_its_manifest_says_what_to_do(run: Path) -> None:
    (run / rank_folder(1) / RANK_FILE).unlink()
    with pytest.raises(UnreadableError, match=r"rank\.json: No such file; .*copy the whole run"):
        _ = Trace.open(run).ranks[1].manifest


def test_a_run_without_its_manifest_is_torn_if_ranks_are_there(run: Path) -> None:
    (run / RUN_FILE).unlink()
    assert RUN_FILE in _only_reason(run, Integrity.TORN)


@pytest.mark.parametrize("size", [0, -1, 10**12, 10**30])
def test_a_world_that_cannot_be_is_refused_without_counting_it(run: Path, size: int) -> None:
    RunManifest(workload="test", state=RunState.COMPLETE, world_size=size).write(run)
    assert "'world_size'" in _only_reason(run, Integrity.TORN)
    with pytest.raises(UnreadableError, match="'world_size'"):
        Trace.open(run)


@pytest.mark.parametrize(
    "make", ["missing", "file", "empty", "folder of another program", "another program's run.json"]
)
def test_what_is_no_run_is_refused_with_a_reason(tmp_path: Path, make: str) -> None:
    path = tmp_path / "thing"
    if make == "file":
        path.write_text("x")
    elif make != "missing":
        path.mkdir()
    if make.startswith("folder"):
        (path / "notes.txt").write_text("x")
    if make.startswith("another"):
        (path / RUN_FILE).write_text('{"version": 1}')
        (path / rank_folder(0)).mkdir()
    for read in (Trace.open, verify):
        with pytest.raises(UnreadableError, match="thing"):
            read(path)


# --- the fakes that ship -------------------------------------------------------------------------


def test_a_fake_clock_stands_still_until_it_is_told() -> None:
    clock = FakeClock(5)
    assert (clock(), clock()) == (5, 5)
    clock.advance(10)
    assert clock() == 15


def test_importing_profkit_does_not_import_the_fakes() -> None:
    code = (
        "import sys, profkit; sys.exit('profkit.testing' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"ranks": 2, "steps": 30, "kernels_per_step": 5, "device": "cuda"}
    arguments["stacks"] = True
    first, second, other = (
        synthetic_trace(tmp_path / name, seed=seed, **arguments)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for table in SHORT_TABLES:
        path = Path(rank_folder(1)) / f"{table}.arrows"
        assert (first / path).read_bytes() == (second / path).read_bytes()
        assert (first / path).read_bytes() != (other / path).read_bytes() or table in {
            "strings",
            "samples",
            "stacks",
            "frames",
        }


def test_synthetic_steps_follow_each_other_and_their_phases_tile_them(run: Path) -> None:
    trace = Trace.open(run)
    for rank in range(2):
        steps = trace.steps.filter(pc.equal(trace.steps["rank"], rank))
        spans = trace.spans.filter(pc.equal(trace.spans["rank"], rank))
        assert steps["start_ns"].to_pylist()[1:] == steps["end_ns"].to_pylist()[:-1]
        assert bool(pc.all(pc.less_equal(spans["start_ns"], spans["end_ns"])).as_py())
        covered = pc.sum(pc.subtract(spans["end_ns"], spans["start_ns"])).as_py()
        assert 0.98 < covered / (steps["end_ns"][-1].as_py() - steps["start_ns"][0].as_py()) < 1


def test_synthetic_ranks_meet_in_every_collective(run: Path) -> None:
    collectives = Trace.open(run).collectives
    both = [collectives.filter(pc.equal(collectives["rank"], rank)) for rank in range(2)]
    for column in ("communicator", "sequence", "op", "bytes", "end_ns"):
        assert both[0][column].to_pylist() == both[1][column].to_pylist()
    for rank in both:
        assert bool(
            pc.all(
                pc.and_(
                    pc.less_equal(rank["ready_ns"], rank["start_ns"]),
                    pc.less(rank["start_ns"], rank["end_ns"]),
                )
            ).as_py()
        )
        assert bool(pc.all(pc.less_equal(rank["end_ns"][:-1], rank["start_ns"][1:])).as_py())


def test_synthetic_kernels_of_one_stream_do_not_overlap(tmp_path: Path) -> None:
    kernels = Trace.open(
        synthetic_trace(tmp_path / "run", steps=20, kernels_per_step=50, device="cuda")
    ).kernels
    assert kernels.num_rows == 1000
    assert bool(pc.all(pc.less_equal(kernels["end_ns"][:-1], kernels["start_ns"][1:])).as_py())
    assert len(pc.unique(kernels["category"])) > 3
    assert set(kernels["device"].to_pylist()) == {"cuda:0"}


def test_a_planted_duration_is_found_again(tmp_path: Path) -> None:
    run = synthetic_trace(
        tmp_path / "run",
        ranks=2,
        steps=10,
        jitter=0,
        phase_ns={"forward": 7_000_000},
        rank_phase_ns={1: {"backward": 90_000_000}},
    )
    spans = Trace.open(run).spans
    last = spans.filter(pc.equal(spans["step"], 9))
    took = pc.subtract(last["end_ns"], last["start_ns"]).to_pylist()
    by_name = dict(
        zip(
            zip(last["rank"].to_pylist(), last["phase"].to_pylist(), strict=True), took, strict=True
        )
    )
    assert by_name[0, "forward"] == by_name[1, "forward"] == 7_000_000
    assert by_name[1, "backward"] == 90_000_000
    waited = by_name[0, "allreduce"] - by_name[1, "allreduce"]
    assert waited == pytest.approx(90_000_000 - MEAN_PHASE_NS["backward"], rel=0.01)


def test_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bakward"):
        synthetic_trace(tmp_path / "run", phase_ns={"bakward": 1})
