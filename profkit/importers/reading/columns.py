"""numpy arrays as Arrow columns, without `pa.array`, which imports pandas where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.schema import SCHEMAS

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

NULL = -1
"""An id that stands for no name."""


def numbers(values: Array, valid: Bools | None = None) -> pa.Array:
    """A column of whole numbers, null where `valid` is false."""
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(data.dtype), len(data), [_bitmap(valid), pa.py_buffer(data)]
    )


def flags(values: Bools, valid: Bools | None = None) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bitmap(valid), _bitmap(values)])


def names(ids: Array, values: Sequence[str]) -> pa.DictionaryArray:
    """A column of names by id, null for `NULL`; only the names that are used are kept."""
    used, places = np.unique(ids, return_inverse=True)
    skipped = int(len(used) > 0 and used[0] < 0)
    indices = (places.reshape(-1) - skipped).astype(np.int32)
    known = pa.array([values[each] for each in used[skipped:].tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(numbers(indices, indices >= 0), known)


def constant(value: str | None, count: int) -> pa.DictionaryArray:
    return names(np.full(count, NULL if value is None else 0), [value or ""])


def triples(values: Array, valid: Bools) -> pa.Array:
    """A column of three numbers each."""
    kind = SCHEMAS["kernels"].field("grid").type
    return pa.Array.from_buffers(
        kind, len(values), [_bitmap(valid)], children=[numbers(values.astype(np.int32).reshape(-1))]
    )


def _bitmap(valid: Bools | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
