"""Turns numpy arrays into Arrow columns.

It does not call `pa.array` for numbers, which imports pandas if that is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.importers.reading.numbers import Bools
from profkit.schema import SCHEMAS

Array = npt.NDArray[Any]

NULL = -1
"""The id of a missing name."""


def numbers(values: Array, valid: Bools | None = None) -> pa.Array:
    """Return a column of numbers, null where `valid` is false."""
    data = np.ascontiguousarray(values)
    buffers = [_bitmap(valid), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), buffers)


def flags(values: Bools, valid: Bools | None = None) -> pa.Array:
    """Return a column of booleans, null where `valid` is false."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bitmap(valid), _bitmap(values)])


def names(ids: Array, values: Sequence[str]) -> pa.DictionaryArray:
    """Return a column of names by id, null for `NULL`; it keeps only the names that are used."""
    used, places = np.unique(ids, return_inverse=True)
    skipped = int(len(used) > 0 and used[0] < 0)
    indices = (places.reshape(-1) - skipped).astype(np.int32)
    known = pa.array([values[each] for each in used[skipped:].tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(numbers(indices, indices >= 0), known)


def constant(value: str, count: int) -> pa.DictionaryArray:
    """Return a column of one name."""
    return names(np.zeros(count, dtype=np.int64), [value])


def triples(values: Array, valid: Bools) -> pa.Array:
    """Return a column of three numbers each, null where `valid` is false."""
    kind = SCHEMAS["kernels"].field("grid").type
    children = [numbers(values.astype(np.int32).reshape(-1))]
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid)], children=children)


def _bitmap(valid: Bools | None) -> pa.Buffer | None:
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
