"""Columns of rows become the arrays that Arrow itself makes of them, or raise its error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from profkit.schema import SCHEMAS
from profkit.trace.arrays import build_batch, repeat_number
from profkit.trace.files import transpose

UNFIT: list[object] = [2**63, "3", []]

COLUMNS: dict[str, tuple[str, str, list[Any]]] = {
    "whole numbers": ("steps", "step", [0, 3, 2**62, -1]),
    "whole numbers, some missing": ("spans", "bytes", [None, 3, None, 2**62]),
    "none at all": ("spans", "bytes", [None, None, None, None]),
    "numbers": ("steps", "loss", [0.5, None, float("inf"), 3]),
    "flags": ("steps", "instrumented", [True, False, False, True]),
    "text": ("strings", "value", ["", "ä", "a\0b", "c"]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_what_arrow_makes_of_it(name: str) -> None:
    table, column, values = COLUMNS[name]
    kind = SCHEMAS[table].field(column).type
    others = {
        field.name: blank(field.type, len(values))
        for field in SCHEMAS[table]
        if not field.nullable and field.name != column
    }
    built = build_batch(table, {**others, column: values}).column(column)
    built.validate(full=True)
    assert built.equals(pa.array(values, kind))


def blank(kind: pa.DataType, count: int) -> list[Any]:
    if pa.types.is_boolean(kind):
        return [False] * count
    return ["" if pa.types.is_string(kind) else 0] * count


@pytest.mark.parametrize("value", UNFIT, ids=str)
def test_a_value_that_its_column_cannot_hold_is_an_error(value: object) -> None:
    columns: dict[str, list[Any]] = {"rank": [0], "id": [value], "value": ["a"]}
    with pytest.raises((pa.ArrowException, OverflowError, TypeError)):
        build_batch("strings", columns)


def test_a_missing_value_of_a_column_without_nulls_is_an_error() -> None:
    with pytest.raises(ValueError, match="'id' has nulls"):
        build_batch("strings", {"rank": [0, 0], "id": [None, None], "value": ["a", "b"]})


def test_a_repeated_number_is_a_column() -> None:
    assert repeat_number(7, 3).to_pylist() == [7, 7, 7]
    assert repeat_number(7, 0).to_pylist() == []


def test_rows_become_columns() -> None:
    rows: list[tuple[Any, ...]] = [(1, "a", None), (2, "b", 3.0)]
    assert [list(column) for column in transpose(rows)] == [[1, 2], ["a", "b"], [None, 3.0]]


def test_a_row_may_miss_its_last_columns() -> None:
    rows: list[tuple[Any, ...]] = [(1,), (2, "b", 3.0), (4, "c")]
    found = [list(column) for column in transpose(rows)]
    assert found == [[1, 2, 4], [None, "b", "c"], [None, 3.0, None]]
