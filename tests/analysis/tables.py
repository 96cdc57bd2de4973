"""Tables of the contract, from rows that a test writes down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from profkit.schema import open_schema


class Step(NamedTuple):
    """A row of `steps`, as far as the analysis of phases looks at it."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    sample_count: int = 4
    epoch: int | None = 0
    instrumented: bool = True


class Span(NamedTuple):
    """A row of `spans`, as far as the analysis of phases looks at it."""

    rank: int
    step: int | None
    phase: str
    depth: int
    thread: str
    start_ns: int
    end_ns: int


def steps_table(rows: Sequence[Step]) -> pa.Table:
    return rows_table("steps", [row._asdict() for row in rows])


def spans_table(rows: Sequence[Span]) -> pa.Table:
    return rows_table("spans", [{**row._asdict(), "name": row.phase} for row in rows])


def rows_table(name: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    schema = open_schema(name)
    columns = [_column(field, [row.get(field.name) for row in rows]) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        return pa.array(values, pa.string()).dictionary_encode().cast(field.type)
    return pa.array(values, field.type)
