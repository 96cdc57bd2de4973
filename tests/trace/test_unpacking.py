"""A small file that unpacks to much, or has huge names, is damage and not a lack of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.plain_file import UNCHECKED_BYTES
from profkit.schema import SCHEMAS
from profkit.testing import synthetic_trace
from profkit.trace.files import RankFiles
from profkit.trace.stream import LARGEST_BATCH, StreamWriter, read_row, read_stream
from profkit.trace.tail import StreamTail
from profkit.trace.unpacking import LONGEST_NAME

TABLE, ROW_BYTES = "samples", 32
ROWS = 16 * LARGEST_BATCH
NAMES = 40
SCHEMA = SCHEMAS[TABLE]
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


def zeros(rows: int) -> pa.RecordBatch:
    columns = []
    for field in SCHEMA:
        columns.append(pa.array(np.zeros(rows, field.type.to_pandas_dtype()), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A file of many batches, each of a size that profkit writes."""
    path = tmp_path / f"{TABLE}.arrows"
    writer = StreamWriter(path, TABLE)
    writer.write(zeros(ROWS))
    writer.close()
    return path


def write_whole(path: Path, batch: pa.RecordBatch) -> Path:
    with pa.ipc.new_stream(path, batch.schema, options=ZSTD) as writer:
        writer.write_batch(batch)
    return path


def test_many_batches_unpack_to_no_more_than_a_limit(many: Path) -> None:
    found = read_stream(many, TABLE)
    assert many.stat().st_size < UNCHECKED_BYTES / 1_000
    assert 0 < found.rows * ROW_BYTES <= UNCHECKED_BYTES
    assert "unpack to" in found.problem
    some = read_stream(many, TABLE, columns=["rank"])
    assert (some.rows, some.problem) == (found.rows, found.problem)


def test_one_batch_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:
    path = write_whole(tmp_path / f"{TABLE}.arrows", zeros(ROWS * 2))
    found = read_stream(path, TABLE)
    assert found.rows == 0
    assert "unpack to" in found.problem
    assert read_row(path, TABLE, 1) is None
    assert StreamTail(path, TABLE).read() == []


def test_rows_without_columns_are_bounded_too(tmp_path: Path) -> None:
    """Columns that a file lacks become columns of nulls, so that rows cost memory without bytes."""
    schema = pa.schema([SCHEMA.field("rank")])
    rows = pa.RecordBatch.from_arrays([pa.array(np.zeros(ROWS, np.int32))], schema=schema)
    path = write_whole(tmp_path / f"{TABLE}.arrows", rows)
    assert "unpack to" in read_stream(path, TABLE, columns=["device"]).problem


def test_a_message_that_profkit_does_not_write_is_refused(tmp_path: Path) -> None:
    """An older version of the format packs in another way, and dictionaries are packed as well."""
    path = tmp_path / f"{TABLE}.arrows"
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(path, SCHEMA, options=options) as writer:
        writer.write_batch(zeros(3))
    assert read_stream(path, TABLE).problem == "a record batch that profkit does not write"
    names = pa.array(["a"] * 3).dictionary_encode()
    batch = zeros(3)
    batch = pa.RecordBatch.from_arrays([*batch.columns, names], [*SCHEMA.names, "more"])
    batch = batch.cast(pa.schema([*SCHEMA, pa.field("more", names.type)]))
    found = read_stream(write_whole(path, batch), TABLE)
    assert found.problem == "a dictionary that profkit does not write"


def test_huge_names_are_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_trace(tmp_path / "run", steps=20)
    path = run / "r00000" / "strings.arrows"
    path.unlink()
    values = [f"{place}{'x' * 1_000_000}" for place in range(NAMES)]
    columns = [
        pa.array([0] * NAMES, pa.int32()),
        pa.array(range(NAMES), pa.int32()),
        pa.array(values),
    ]
    writer = StreamWriter(path, "strings")
    writer.write(pa.RecordBatch.from_arrays(columns, schema=SCHEMAS["strings"]))
    writer.close()
    assert main(["report", str(run)]) in set(ExitCode)
    assert main(["verify", str(run)]) == ExitCode.UNREADABLE
    assert "rank 0: strings: a name of 1.00 MB" in capsys.readouterr().out
    assert StreamTail(path, "strings").read() == []


def test_the_longest_name_that_is_written_is_read(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / "r00000", 0)
    name = "\udc80" * (LONGEST_NAME + 1)
    columns: dict[str, list[Any]] = {
        "device": [None],
        "source": [name],
        "metric": ["m"],
        "time_ns": [1],
        "value": [1.0],
    }
    files.write(TABLE, columns)
    files.close()
    found = read_stream(tmp_path / "r00000" / "strings.arrows", "strings")
    assert found.problem == ""
    assert found.batches[0]["value"][0].as_py() == r"\udc80" * LONGEST_NAME
