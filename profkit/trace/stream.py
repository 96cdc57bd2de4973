"""One table of one rank on disk: an Arrow IPC stream whose rows survive a crash."""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from profkit.plain_file import open_plain
from profkit.schema import SCHEMAS
from profkit.trace.unpacking import Unpacking, check_names, read_batches

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
LARGEST_BATCH = 65_536
SMALL_BATCH = 128
"""Batches below this number of rows are not compressed: that costs ten times what it saves."""

LONGEST_PROBLEM = 200
"""A message of Arrow is cut here: it may quote the damaged file at length."""

# Arrow must not start threads of its own in a job.
SMALL_BYTES = 1_000_000
"""Waking threads costs more than unpacking a smaller file, and a run may have thousands of them."""

READ_AT_ONCE_BYTES = 64_000
"""A file up to this size is read into memory once: to map it, or to open it again, costs more."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)

DAMAGE = (pa.ArrowException, OSError, ValueError, MemoryError, EOFError)
"""The exceptions that reading a damaged stream may raise."""


@dataclass
class StreamCount:
    """Counts of a stream while it is written, as `end.json` states them in the end."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    crc32: int = 0


class StreamWriter:
    """Appends batches to a new file. When `write` has returned, its rows survive a SIGKILL.

    A write that fails part way is cut off again, so a full disk leaves a stream that ends cleanly.
    """

    def __init__(self, path: Path, table: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._buffer = io.BytesIO()
        """Collects the pieces of a message, so that each message is one write to the file."""
        self._ipc = pa.ipc.new_stream(self._buffer, SCHEMAS[table], options=_OPTIONS)
        self.count = StreamCount()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, in parts if it is large."""
        for start in range(0, batch.num_rows, LARGEST_BATCH):
            part = batch.slice(start, LARGEST_BATCH)
            if self.count.batches and part.num_rows < SMALL_BATCH:
                self._append(bytes(part.serialize()))
            else:  # the first message also holds the schema
                self._ipc.write_batch(part)
                self._append(self._take_message())
            self.count.rows += part.num_rows
            self.count.batches += 1

    def _take_message(self) -> bytes:
        message = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return message

    def close(self) -> None:
        """End the stream with its marker. The file is closed even if the marker cannot be written.

        If not even the header was written, the file stays empty: a marker alone is not a stream.
        """
        try:
            self._ipc.close()
            if self.count.bytes:
                self._append(self._take_message())
        finally:
            os.close(self._fd)

    def _append(self, message: bytes) -> None:
        rest = memoryview(message)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self.count.bytes)
            os.lseek(self._fd, self.count.bytes, os.SEEK_SET)  # or the next write leaves a hole
            raise
        self.count.bytes += len(message)
        self.count.crc32 = zlib.crc32(message, self.count.crc32)


@dataclass(frozen=True)
class StreamContent:
    """The readable part of a stream: every batch up to the first damage."""

    batches: tuple[pa.RecordBatch, ...]
    problem: str
    """Why reading stopped before the end of the file, or an empty string."""
    closed: bool
    """True if the stream ends with its marker, as a writer that was not killed leaves it."""
    changed: bool = False
    """True if the file is not the one that was written, so that any value in it may be wrong."""
    checksum: tuple[int, int] | None = None
    """The size and the CRC-32 of the file, if it was read at once."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class SchemaMismatchError(ValueError):
    """The columns of a stream are not those of the contract."""


def read_stream(
    path: Path,
    table: str,
    *,
    mapped: bool = True,
    columns: Sequence[str] | None = None,
) -> StreamContent:
    """Read all batches that are whole and valid. Report damage in the result; never raise.

    A file that may still be written must not be mapped: its writer may cut it, and touching a page
    that is gone kills the reader. With `columns`, other columns are neither unpacked nor checked.
    """
    batches: list[pa.RecordBatch] = []
    try:
        with _open_source(path, mapped=mapped) as source:
            if not source.size():
                return StreamContent((), "", closed=False)
            batches.extend(_valid_batches(source, table, columns))
            rest = source.size() - source.tell()
            source.seek(source.size() - len(END_OF_STREAM))
            is_closed = source.read() == END_OF_STREAM
            checksum = _checksum_of(source)
    except DAMAGE as error:
        words = str(getattr(error, "strerror", None) or error)
        problem = " ".join(words.split())[:LONGEST_PROBLEM] or type(error).__name__
        return StreamContent(tuple(batches), problem, closed=False)
    if rest:
        return StreamContent(tuple(batches), f"{rest} bytes follow its end", closed=False)
    return StreamContent(tuple(batches), "", closed=is_closed, checksum=checksum)


def _checksum_of(source: pa.NativeFile) -> tuple[int, int] | None:
    """Return the size and the CRC-32 of a file that is in memory already."""
    if not isinstance(source, pa.BufferReader):
        return None
    source.seek(0)
    return source.size(), zlib.crc32(source.read_buffer())


@contextlib.contextmanager
def _open_source(path: Path, *, mapped: bool) -> Iterator[pa.NativeFile]:
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= READ_AT_ONCE_BYTES:
            yield pa.BufferReader(file.read(size))
            return
    # Arrow opens by name, because Python's map of a file would keep a descriptor for each.
    opener = pa.memory_map if mapped else pa.OSFile
    with opener(os.fsencode(path)) as source:
        yield source


def _valid_batches(
    source: pa.NativeFile,
    table: str,
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    schema = SCHEMAS[table]
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    with _open_stream(source, columns) as reader:
        plan = _plan_columns(reader.schema, schema)
        for batch in read_batches(source, reader):
            batch.validate(full=True)
            if table == "strings":
                check_names(batch)
            yield _conform(batch, plan, schema)


def _open_stream(
    source: pa.NativeFile,
    columns: Sequence[str] | None,
) -> pa.ipc.RecordBatchStreamReader:
    """Open a reader of all columns, or of those that are wanted and present."""
    if columns is None:
        threads = source.size() > SMALL_BYTES
        return pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=threads))
    with pa.ipc.open_stream(source) as reader:
        wanted = [place for place, name in enumerate(reader.schema.names) if name in columns]
    source.seek(0)
    return pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def read_row(path: Path, table: str, row: int, *, mapped: bool = True) -> dict[str, Any] | None:
    """Return one row of a stream, with names as ids, or `None` if it cannot be read.

    Only the row's own batch is unpacked; the rows of those before it are counted.
    """
    try:
        with _open_source(path, mapped=mapped) as source:
            schema = pa.ipc.read_schema(source)
            while True:
                message = pa.ipc.read_message(source)
                count = Unpacking(source.size()).add(message)
                if row < count:
                    break
                row -= count
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            values: dict[str, Any] = conform_batch(batch, table).slice(row, 1).to_pylist()[0]
            return values
    except DAMAGE:
        return None


def conform_batch(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """Return a batch in the contract's columns, or raise a `SchemaMismatchError`."""
    return _conform(batch, _plan_columns(batch.schema, SCHEMAS[table]), SCHEMAS[table])


def _plan_columns(found: pa.Schema, schema: pa.Schema) -> list[int | None]:
    """Return the place in the file of each column of the contract, or `None` if it is missing."""
    if found.equals(schema):
        return list(range(len(schema)))
    plan: list[int | None] = []
    for field in schema:
        positions = found.get_all_field_indices(field.name)
        if not positions and field.nullable:
            plan.append(None)
            continue
        if len(positions) != 1:
            raise SchemaMismatchError(f"column '{field.name}' stands {len(positions)} times in it")
        kind = found.field(positions[0]).type
        if kind != field.type:
            expected = f"where {field.type} belongs"
            raise SchemaMismatchError(f"column '{field.name}' is {kind} {expected}")
        plan.append(positions[0])
    return plan


def _conform(
    batch: pa.RecordBatch,
    plan: Sequence[int | None],
    schema: pa.Schema,
) -> pa.RecordBatch:
    columns = []
    for place, field in zip(plan, schema, strict=True):
        if place is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(place)
        if column.null_count and not field.nullable:
            raise SchemaMismatchError(f"column '{field.name}' has nulls and may have none")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def file_checksum(path: Path, size: int) -> int | None:
    """Return the CRC-32 of a file, or `None` if it does not have this size."""
    crc = 0
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size != size:
                return None
            while part := file.read(1 << 20):
                crc = zlib.crc32(part, crc)
    except OSError:
        return None
    return crc
