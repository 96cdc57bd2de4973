"""Helpers for columns treat nulls and every encoding alike."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from profkit.frame.columns import names_and_codes, smallest, step_places

VALUES = ["b", "a", None, "b"]


@pytest.mark.parametrize(
    "column",
    [
        pa.chunked_array([pa.array(VALUES)]),
        pa.chunked_array([pa.array(VALUES).dictionary_encode()]),
        pa.chunked_array(
            [pa.array(VALUES[:1]).dictionary_encode(), pa.array(VALUES[1:]).dictionary_encode()]
        ),
    ],
    ids=["plain", "dictionary", "two dictionaries"],
)
def test_names_and_codes_spell_the_column(column: pa.ChunkedArray) -> None:
    names, codes = names_and_codes(column)
    assert names == ["b", "a"]
    assert codes.tolist() == [0, 1, -1, 0]


def test_a_column_without_rows_has_no_names() -> None:
    column = pa.chunked_array([], type=pa.dictionary(pa.int32(), pa.string()))
    names, codes = names_and_codes(column)
    assert (names, codes.tolist()) == ([], [])


def test_only_steps_that_are_used_have_a_place() -> None:
    table = pa.table({"step": pa.array([4, None, 2, 9, -1], pa.int64())})
    assert step_places(table, np.array([2, 4])).tolist() == [1, -1, 0, -1, -1]
    assert step_places(table, np.array([-1])).tolist() == [-1, -1, -1, -1, 0]
    assert step_places(table, np.empty(0, dtype=np.int64)).tolist() == [-1] * 5


def test_numbers_that_need_eight_bytes_are_signed_so_that_they_stay_whole() -> None:
    for most, kind in ((200, np.uint8), (2**32, np.int64), (2**62, np.int64)):
        found = smallest(np.array([0, most]))
        assert found.dtype == kind
        assert (np.array([1]) + found).dtype == np.int64
