"""Limits what the compressed batches of a file unpack to, before they are unpacked.

A batch states the unpacked size of each of its buffers, and Arrow allocates what it states.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from profkit.plain_file import unpacks_too_far
from profkit.text import byte_size

ROW_BYTES = 100
"""Memory of a row at least: columns that a file lacks become columns of nulls."""

LONGEST_NAME = 16_384
"""Characters of a name. The writer drops the rest, because a table repeats a name in each row."""

_LONGEST_ESCAPE = len(r"\udc80")

_HEADER, _ROWS, _BUFFERS, _COMPRESSION = 2, 0, 2, 3
"""Fields of the tables `Message` and `RecordBatch` in Arrow's format."""

_BUFFER = struct.Struct("<qq")
"""The place and the length of a buffer in the body."""


@dataclass
class Unpacking:
    """Adds up what the batches of a file of `packed` bytes unpack to."""

    packed: int
    unpacked: int = 0

    def add(self, message: pa.Message) -> int:
        """Return the rows of a batch, or raise a `ValueError` if this one is too much."""
        is_known = message.metadata_version == pa.ipc.MetadataVersion.V5  # V4 packs otherwise
        if message.type != "record batch" or not is_known:
            raise ValueError(f"a {message.type} that profkit does not write")
        try:
            rows, size = _read_sizes(message)
        except struct.error:
            raise ValueError("a batch whose header cannot be read") from None
        self.unpacked += max(size, ROW_BYTES * rows)
        if unpacks_too_far(self.packed, self.unpacked):
            most = byte_size(self.unpacked)
            raise ValueError(f"{byte_size(self.packed)} unpack to {most} or more, as in no run")
        return rows


def read_batches(
    source: pa.NativeFile, reader: pa.ipc.RecordBatchStreamReader
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that a reader of this source returns; each is checked before."""
    unpacking = Unpacking(source.size())
    while True:
        place = source.tell()
        with contextlib.suppress(EOFError):  # the reader knows whether it ends as it should
            unpacking.add(pa.ipc.read_message(source))
        source.seek(place)
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        yield batch


def check_names(batch: pa.RecordBatch) -> None:
    """Raise a `ValueError` if a name is longer than any that profkit writes."""
    import pyarrow.compute as pc  # a job never reads names, and this import takes long

    longest = pc.max(pc.binary_length(batch.column("value"))).as_py() or 0
    if longest > _LONGEST_ESCAPE * LONGEST_NAME:
        raise ValueError(f"a name of {byte_size(longest)}")


def _read_sizes(message: pa.Message) -> tuple[int, int]:
    """Return the rows of a batch, and the bytes that its buffers unpack to; 0 if not packed."""
    data, body = memoryview(message.metadata), memoryview(message.body)
    root = _number("I", data, 0)
    at = _find(data, root, _HEADER)
    batch = at + _number("I", data, at)
    rows_at = _find(data, batch, _ROWS)
    rows = _number("q", data, rows_at) if rows_at else 0
    if not _find(data, batch, _COMPRESSION):
        return rows, 0
    at = _find(data, batch, _BUFFERS)
    at += _number("I", data, at)
    size, first = 0, at + 4
    for place in range(first, first + _BUFFER.size * _number("I", data, at), _BUFFER.size):
        offset, length = _BUFFER.unpack_from(data, place)
        if length:
            size += max(0, _number("q", body, offset))  # -1 if this one is not packed
    return rows, size


def _find(data: memoryview, table: int, field: int) -> int:
    """Return the place of a field of a flatbuffer's table; 0 if the table lacks it."""
    kinds = table - _number("i", data, table)
    entry = 4 + 2 * field
    offset = _number("H", data, kinds + entry) if entry < _number("H", data, kinds) else 0
    return table + offset if offset else 0


def _number(code: str, data: memoryview, place: int) -> int:
    number: int = struct.unpack_from(f"<{code}", data, place)[0]
    return number
