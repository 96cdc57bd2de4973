"""One table of one rank on disk: an Arrow IPC stream that a crash cannot take back."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import zlib
from array import array as packed_numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from profkit.schema import SCHEMAS

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
LARGEST_BATCH = 65_536
SMALL_BATCH = 128

_OPTIONS = pa.ipc.IpcWriteOptions(
    compression="zstd", use_threads=False
)  # no threads of ours beside the job
DAMAGE = (pa.ArrowException, OSError, ValueError, MemoryError, EOFError)
"""What reading a damaged stream may raise."""


class _Gather(io.RawIOBase):
    """Collects the pieces of a message, so that each message is one write to the file."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def take(self) -> bytes:
        message = b"".join(self._pieces)
        self._pieces.clear()
        return message


@dataclass(frozen=True)
class StreamCount:
    """What was written to a stream, as `end.json` states it."""

    rows: int
    batches: int
    bytes: int
    crc32: int


class StreamWriter:
    """Appends batches to a new file. When `write` has returned, its rows survive a SIGKILL.

    A write that fails part way is cut off again, so a full disk leaves a stream that ends cleanly.
    """

    def __init__(self, path: Path, table: str) -> None:
        self.schema = SCHEMAS[table]
        self._fd = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        self._gather = _Gather()
        self._ipc = pa.ipc.new_stream(self._gather, self.schema, options=_OPTIONS)
        self._rows = self._batches = self._bytes = self._crc = 0

    @property
    def count(self) -> StreamCount:
        return StreamCount(self._rows, self._batches, self._bytes, self._crc)

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, LARGEST_BATCH):
            part = batch.slice(start, LARGEST_BATCH)
            self._append(self._message(part))
            self._rows += part.num_rows
            self._batches += 1

    def _message(self, batch: pa.RecordBatch) -> bytes:
        """A batch as it stands in the stream. A small one is not compressed: that costs ten times what it saves."""
        if self._batches and batch.num_rows < SMALL_BATCH:
            return bytes(batch.serialize())
        self._ipc.write_batch(batch)
        return self._gather.take()

    def close(self) -> None:
        """End the stream with its marker. The file is closed even if the marker cannot be written.

        A file that not even its header fitted into stays empty: a marker alone is no stream.
        """
        try:
            self._ipc.close()
            if self._bytes:
                self._append(self._gather.take())
        finally:
            os.close(self._fd)

    def abandon(self) -> None:
        """Close the file as it is: after a failed write nothing more may follow."""
        os.close(self._fd)

    def _append(self, message: bytes) -> None:
        rest = memoryview(message)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self._bytes)
            os.lseek(self._fd, self._bytes, os.SEEK_SET)  # else the next write leaves a hole
            raise
        self._bytes += len(message)
        self._crc = zlib.crc32(message, self._crc)


def build_batch(
    table: str, columns: Mapping[str, Sequence[Any]], *, give_way: Callable[[], None] = lambda: None
) -> pa.RecordBatch:
    """A batch of the table's schema; a column that is missing must be nullable and is all null.

    A value that its column cannot hold is an error here, because it would end the reading later.
    `give_way` is called after each column.
    """
    schema = SCHEMAS[table]
    count = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        arrays.append(
            _to_array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(count, field.type)
        )
        give_way()
    for field, array in zip(schema, arrays, strict=True):
        if array.null_count and not field.nullable:
            raise ValueError(f"column '{field.name}' has nulls and may have none")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(kind)
    if (
        pa.types.is_primitive(kind)
        and hasattr(values, "__array_interface__")
        and values.dtype.kind in "iuf"
    ):
        return _from_numpy(values, kind)
    if isinstance(values, list | tuple | range):
        with contextlib.suppress(TypeError, OverflowError, AttributeError, UnicodeError, KeyError):
            return _from_sequence(values, kind)
    return pa.array(values, type=kind)  # also for the error that names a wrong value


def _from_sequence(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array without `pa.array`, which imports pandas if it is installed.

    That takes a second of the job's processor time, and a hundred garbage collections.
    """
    if pa.types.is_fixed_size_list(kind):
        return _from_extents(values, kind)
    nulls = [value is None for value in values] if None in values else None
    validity = None if nulls is None else _bitmap([not null for null in nulls])
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(values), [validity, _bitmap(_checked_flags(values))])
    if pa.types.is_string(kind):
        encoded = [b"" if value is None else str.encode(value) for value in values]
        offsets = packed_numbers("i", itertools.accumulate(map(len, encoded), initial=0))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(kind, len(values), buffers)
    plain = values if nulls is None else [0 if value is None else value for value in values]
    data = packed_numbers(_CODES[str(kind)], plain)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "float": "f", "double": "d"}
"""The code of `array` for each type of column; it refuses what the column cannot hold."""


def _from_extents(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build extents of kernels: three numbers, or null."""
    size = kind.list_size
    if any(value is not None and len(value) != size for value in values):
        raise TypeError("an extent has another number of parts")
    none = (0,) * size
    flat = list(itertools.chain.from_iterable(none if value is None else value for value in values))
    child = _from_sequence(flat, kind.value_type)
    validity = _bitmap([value is not None for value in values]) if None in values else None
    return pa.Array.from_buffers(kind, len(values), [validity], children=[child])


def _checked_flags(values: Sequence[Any]) -> list[bool]:
    if not {bool, type(None)}.issuperset(map(type, values)):
        raise TypeError("a flag is true or false")
    return [bool(value) for value in values]


def _bitmap(flags: Sequence[bool]) -> pa.Buffer:
    """Return flags as Arrow packs them: the lowest bit first."""
    packed = bytearray((len(flags) + 7) // 8)
    for place, flag in enumerate(flags):
        if flag:
            packed[place >> 3] |= 1 << (place & 7)
    return pa.py_buffer(bytes(packed))


def _from_numpy(values: Any, kind: pa.DataType) -> pa.Array:
    """`pa.array(ndarray)` imports pandas where it is installed, which costs a second; this does not."""
    data = values.astype(values.dtype.newbyteorder("="), copy=True, order="C")
    found = pa.from_numpy_dtype(data.dtype)
    return pa.Array.from_buffers(found, len(data), [None, pa.py_buffer(data)]).cast(kind)


@dataclass(frozen=True)
class StreamContent:
    """What could be read of a stream: every batch up to the first damage."""

    batches: tuple[pa.RecordBatch, ...]
    problem: str
    """Why reading stopped before the end of the file, or nothing."""
    closed: bool
    """Whether the stream ends with its marker, as a writer that was not killed leaves it."""
    changed: bool = False
    """Whether the file is another than the one that was written, so that any value in it may be wrong."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class SchemaMismatchError(ValueError):
    """The stream holds other columns than the contract says."""


def read_stream(
    path: Path, table: str, *, mapped: bool = True, columns: Sequence[str] | None = None
) -> StreamContent:
    """All batches that are whole and valid. Damage ends the reading and is told, never raised.

    A file that may still be written is not mapped: its writer may cut it, and touching a page that
    is gone kills the reader. With `columns`, the others are neither unpacked nor looked at.
    """
    batches: list[pa.RecordBatch] = []
    try:
        if path.stat().st_size == 0:
            return StreamContent((), "", closed=False)
        with pa.memory_map(os.fsencode(path)) if mapped else pa.OSFile(os.fsencode(path)) as source:
            batches.extend(_valid_batches(source, table, columns))
            rest = source.size() - source.tell()
    except DAMAGE as error:
        return StreamContent(tuple(batches), _one_line(error), closed=False)
    if rest:
        return StreamContent(tuple(batches), f"{rest} bytes follow its end", closed=False)
    return StreamContent(tuple(batches), "", closed=_ends_with_marker(path))


def _valid_batches(
    source: pa.NativeFile, table: str, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    schema = (
        SCHEMAS[table]
        if columns is None
        else pa.schema([SCHEMAS[table].field(name) for name in columns])
    )
    with _open(source, columns) as reader:
        plan = _plan_columns(reader.schema, schema)
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            batch.validate(full=True)
            yield _conform(batch, plan, schema)


def _open(source: pa.NativeFile, columns: Sequence[str] | None) -> pa.ipc.RecordBatchStreamReader:
    """A reader of all columns, or of those that are wanted and there."""
    if columns is None:
        return pa.ipc.open_stream(source)
    with pa.ipc.open_stream(source) as reader:
        wanted = [place for place, name in enumerate(reader.schema.names) if name in columns]
    source.seek(0)
    return pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def read_row(path: Path, table: str, row: int, *, mapped: bool = True) -> dict[str, Any] | None:
    """One row of a stream, name columns as ids: one batch is unpacked, those before it are only counted."""
    try:
        with pa.memory_map(os.fsencode(path)) if mapped else pa.OSFile(os.fsencode(path)) as source:
            with _open(source, ["rank"]) as reader:
                while True:
                    place = source.tell()
                    count = reader.read_next_batch().num_rows
                    if row < count:
                        break
                    row -= count
            source.seek(0)
            schema = pa.ipc.read_schema(source)
            source.seek(place)
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
            batch.validate(full=True)
            values: dict[str, Any] = conform_batch(batch, table).slice(row, 1).to_pylist()[0]
            return values
    except (StopIteration, *DAMAGE):
        return None


def conform_batch(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """A batch of a stream in the contract's columns; one that has others raises a `SchemaMismatchError`."""
    return _conform(batch, _plan_columns(batch.schema, SCHEMAS[table]), SCHEMAS[table])


def _plan_columns(found: pa.Schema, schema: pa.Schema) -> list[int | None]:
    """For each column of the contract, where it stands in the file; `None` where it is missing."""
    plan: list[int | None] = []
    for field in schema:
        positions = found.get_all_field_indices(field.name)
        if not positions and field.nullable:
            plan.append(None)
        elif len(positions) != 1:
            raise SchemaMismatchError(f"column '{field.name}' stands {len(positions)} times in it")
        elif found.field(positions[0]).type != field.type:
            raise SchemaMismatchError(
                f"column '{field.name}' is {found.field(positions[0]).type} where {field.type} belongs"
            )
        else:
            plan.append(positions[0])
    return plan


def _conform(
    batch: pa.RecordBatch, plan: Sequence[int | None], schema: pa.Schema
) -> pa.RecordBatch:
    columns = [
        pa.nulls(batch.num_rows, field.type) if at is None else batch.column(at)
        for at, field in zip(plan, schema, strict=True)
    ]
    for field, column in zip(schema, columns, strict=True):
        if column.null_count and not field.nullable:
            raise SchemaMismatchError(f"column '{field.name}' has nulls and may have none")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _ends_with_marker(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-len(END_OF_STREAM), os.SEEK_END)
        return file.read() == END_OF_STREAM


def checksum(path: Path, size: int) -> int | None:
    """The CRC-32 of a file of this size; `None` where it has another size."""
    if not path.exists() or path.stat().st_size != size:
        return None
    crc = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            crc = zlib.crc32(part, crc)
    return crc


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
