"""Build Arrow arrays and batches from a table's columns without `pa.array`.

`pa.array` imports pandas if it is installed. That takes a second of the job's processor time and
a hundred garbage collections.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from profkit.schema import SCHEMAS

_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "float": "f", "double": "d"}
"""The code of `struct` for each type of column. It refuses what the column cannot hold."""

_DOES_NOT_FIT = (
    *(TypeError, OverflowError, AttributeError, UnicodeError, KeyError),
    struct.error,
)
"""What a value may raise that its column cannot hold. Arrow then names the value."""


def build_batch(
    table: str,
    columns: Mapping[str, Sequence[Any]],
    *,
    give_way: Callable[[], None] = lambda: None,
) -> pa.RecordBatch:
    """Build a batch of the table's schema. A missing column must be nullable and is all null.

    A value that its column cannot hold is an error here, because it would end the reading later.
    `give_way` is called after each column.
    """
    schema = SCHEMAS[table]
    count = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        if field.name in columns:
            array = _to_array(columns[field.name], field.type)
        else:
            array = pa.nulls(count, field.type)
        if array.null_count and not field.nullable:
            raise ValueError(f"column '{field.name}' has nulls and may have none")
        arrays.append(array)
        give_way()
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    is_numpy = hasattr(values, "__array_interface__") and values.dtype.kind in "iuf"
    if is_numpy and pa.types.is_primitive(kind):
        data = values.astype(values.dtype.newbyteorder("="), copy=True, order="C")
        found = pa.from_numpy_dtype(data.dtype)
        return pa.Array.from_buffers(found, len(data), [None, pa.py_buffer(data)]).cast(kind)
    if isinstance(values, list | tuple | range):
        with contextlib.suppress(*_DOES_NOT_FIT):
            return _from_sequence(values, kind)
    return pa.array(values, type=kind)  # also for the error that names a wrong value


def _from_sequence(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        return _from_extents(values, kind)
    validity = None
    if None in values:
        if values.count(None) == len(values):
            return pa.nulls(len(values), kind)
        validity = _bitmap([value is not None for value in values])
    if pa.types.is_boolean(kind):
        if not {bool, type(None)}.issuperset(map(type, values)):
            raise TypeError("a flag is true or false")
        return pa.Array.from_buffers(kind, len(values), [validity, _bitmap(values)])
    if pa.types.is_string(kind):
        encoded = [b"" if value is None else str.encode(value) for value in values]
        offsets = _pack("i", list(itertools.accumulate(map(len, encoded), initial=0)))
        buffers = [validity, offsets, pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(kind, len(values), buffers)
    plain = values
    if validity is not None:
        plain = [0 if value is None else value for value in values]
    return pa.Array.from_buffers(kind, len(values), [validity, _pack(_CODES[str(kind)], plain)])


def repeat_number(number: int, count: int) -> pa.Array:
    """Return a column of integers that are all equal."""
    data = struct.pack("i", number) * count
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(data)])


def _pack(code: str, numbers: Sequence[Any]) -> pa.Buffer:
    """Return numbers as a buffer. `array` would take longer, most of all for small ones."""
    return pa.py_buffer(struct.pack(f"{len(numbers)}{code}", *numbers))


def _from_extents(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build extents of kernels: three numbers, or null."""
    size = kind.list_size
    flat: list[int] = []
    for value in values:
        extent = (0,) * size if value is None else value
        if len(extent) != size:
            raise TypeError("an extent has another number of parts")
        flat.extend(extent)
    validity = None
    if None in values:
        validity = _bitmap([value is not None for value in values])
    child = _from_sequence(flat, kind.value_type)
    return pa.Array.from_buffers(kind, len(values), [validity], children=[child])


def _bitmap(flags: Sequence[bool | None]) -> pa.Buffer:
    """Return flags as Arrow packs them: the lowest bit first."""
    packed = bytearray((len(flags) + 7) // 8)
    for place, flag in enumerate(flags):
        if flag:
            packed[place >> 3] |= 1 << (place & 7)
    return pa.py_buffer(bytes(packed))
