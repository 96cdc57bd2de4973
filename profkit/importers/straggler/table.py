"""Reads the table of operations strictly: what is wrong is an error that names the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from profkit.analysis.columns import names_and_codes
from profkit.analysis.whatif.operations import KINDS, NOWHERE, Operations
from profkit.errors import UnreadableError
from profkit.importers.reading.numbers import Bools, Ints
from profkit.text import safe_text

MAGIC = b"PAR1"
MAX_RANKS = 100_000
MAX_ROWS = 50_000_000
MAX_NUMBER = 2**31 - 1
MAX_SECONDS = 4_000_000_000
"""Later times, and longer runs, do not fit into 64 bits of nanoseconds."""
_MAX_REASON = 200
COARSE_S = 0.001
"""Start times that are exact to no more than this say nothing about the order of operations."""

_NUMBERS = {
    "dp_rank": (0, MAX_RANKS), "stage": (0, MAX_RANKS), "rank": (0, MAX_RANKS),
    "step": (0, 2**53), "seq_id": (0, MAX_NUMBER),
}  # fmt: skip
"""The columns of whole numbers, with their smallest value and the one that none reaches."""
_PLACES = ("mc", "gmc", "mb_id")
"""Columns of whole numbers that may be missing: -1 or null."""
_NAMES_ROW = ("rank", "step")
"""The columns that an error about a row names."""
KNOWN = frozenset([*_NUMBERS, *_PLACES, "start_ts", "duration", "optype"])
COLUMNS = ", ".join(sorted(KNOWN))
_EXPORT = "export the trace again"
_DAMAGE = (OSError, pa.ArrowException, ValueError, MemoryError)
"""The exceptions that damaged Parquet files raise; names that are no UTF-8 raise a `ValueError`."""


def columns_of(path: Path) -> set[str] | None:
    """Return the names of a file's columns; `None` if its end cannot be read."""
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names)
    except _DAMAGE:
        return None


def read_operations(path: Path) -> Operations:
    """Return the operations of a trace; raise `UnreadableError` for the first thing wrong."""
    return _Reader(path).read()


class _Reader:
    """Reads one file; its errors name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where: dict[str, Ints] = {}
        """Columns that help to find a row."""

    def read(self) -> Operations:
        table = self._open()
        numbers: dict[str, Ints] = {}
        for name, (least, limit) in _NUMBERS.items():
            numbers[name] = self._whole(table[name], name, least, limit)
            if name in _NAMES_ROW:
                self._where[name] = numbers[name]
        for name in _PLACES:
            numbers[name] = self._whole(table[name], name, NOWHERE, MAX_NUMBER)
        kinds, kind = self._kinds(table["optype"])
        start = self._seconds(table["start_ts"], "start_ts")
        duration = self._seconds(table["duration"], "duration")
        self._refuse(duration < 0, "its duration is negative")
        found = Operations(
            kinds, kind, numbers["rank"], numbers["dp_rank"], numbers["stage"], numbers["step"],
            numbers["seq_id"], numbers["mc"], numbers["gmc"], numbers["mb_id"],
            _nanoseconds(start), _nanoseconds(duration),
        )  # fmt: skip
        self._check(found)
        return found

    def _open(self) -> pa.Table:
        """Return the table with the columns of the format."""
        import pyarrow.parquet as pq

        try:
            with open(self._path, "rb") as file:
                opened = pq.ParquetFile(file)
                rows, names = opened.metadata.num_rows, set(opened.schema_arrow.names)
                missing = sorted(KNOWN - names)
                if missing:
                    word = "columns" if len(missing) > 1 else "column"
                    self._fail(
                        f"misses the {word} {', '.join(missing)} of a StragglerAnalysis trace; "
                        f"{_EXPORT} with all of {COLUMNS}"
                    )
                if rows > MAX_ROWS:
                    self._fail(
                        f"has {rows:,} rows (limit {MAX_ROWS:,}); import fewer steps at a time"
                    )
                table = opened.read(columns=sorted(KNOWN))
        except _DAMAGE as error:
            reason = safe_text(str(error).partition("\n")[0])[:_MAX_REASON]
            self._fail(f"a damaged or incomplete Parquet file ({reason}); copy it again")
        if sorted(table.column_names) != sorted(KNOWN):
            self._fail(f"has a column of the format twice; {_EXPORT}")
        if not table.num_rows:
            self._fail(f"has no rows; {_EXPORT}")
        return table

    def _whole(self, column: pa.ChunkedArray, name: str, least: int, limit: int) -> Ints:
        """Return a column of whole numbers; nulls are allowed if -1 is."""
        if not pa.types.is_integer(column.type):
            self._fail_type(name, column, "whole numbers")
        if least == NOWHERE:
            column = column.fill_null(NOWHERE)
        self._refuse_nulls(column, name)
        try:
            values: Ints = column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            self._fail(f"the column {name} has numbers beyond 64 bits; {_EXPORT}")
        self._refuse(
            (values < least) | (values >= limit),
            f"its {name} is not from {least:,} to {limit - 1:,}",
        )
        return values

    def _kinds(self, column: pa.ChunkedArray) -> tuple[tuple[str, ...], Ints]:
        """Return the names of the operation types, and the type of each row."""
        self._refuse_nulls(column, "optype")
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            self._fail_type("optype", column, "text")
        try:
            names, codes = names_and_codes(column.cast(pa.string()))
        except _DAMAGE:
            self._fail(f"the column optype has names that are no text; {_EXPORT}")
        return tuple(names), codes

    def _seconds(self, column: pa.ChunkedArray, name: str) -> Any:
        """Return a column of times in seconds, as doubles."""
        if not (pa.types.is_float32(column.type) or pa.types.is_float64(column.type)):
            self._fail_type(name, column, "floating-point seconds")
        self._refuse_nulls(column, name)
        values = column.to_numpy()
        self._refuse(~np.isfinite(values), f"its {name} is not a number")
        self._refuse(np.abs(values) > MAX_SECONDS, f"its {name} is longer than a century")
        exact_to = float(np.spacing(np.abs(values).max()))
        if exact_to > COARSE_S:
            self._fail(
                f"the column {name} is of {column.type} and exact to {exact_to:.3g} s only: "
                "store doubles, or times since the start of each step"
            )
        return values.astype(np.float64)

    def _check(self, found: Operations) -> None:
        """Refuse endless steps, a rank that is in several places, and operations twice."""
        _, step = np.unique(found.step, return_inverse=True)
        first, last = np.full((2, step.max() + 1), np.nan)
        np.fmin.at(first, step, found.start / 1e9)
        np.fmax.at(last, step, found.end / 1e9)
        if float((last - first).sum()) > MAX_SECONDS:
            self._fail(f"its steps take longer than a century; {_EXPORT}")
        for what, column in (("dp_rank", found.data_rank), ("stage", found.stage)):
            lowest = np.full(found.rank.max() + 1, MAX_NUMBER)
            np.minimum.at(lowest, found.rank, column)
            self._refuse(column != lowest[found.rank], f"its rank has another {what} elsewhere")
        order = np.lexsort((found.sequence, found.kind, found.step, found.rank))
        same = np.ones(len(order) - 1, dtype=bool)
        for column in (found.sequence, found.kind, found.step, found.rank):
            same &= np.diff(column[order]) == 0
        twice = np.zeros(len(order), dtype=bool)
        twice[order[1:][same]] = True
        self._refuse(twice, "its operation is in the table twice (equal optype and seq_id)")

    def _refuse_nulls(self, column: pa.ChunkedArray, name: str) -> None:
        if column.null_count:
            self._refuse(column.is_null().to_numpy(), f"its {name} is missing")

    def _refuse(self, wrong: Bools, why: str) -> None:
        """Raise an error that names the first row in which something is wrong."""
        count = int(np.count_nonzero(wrong))
        if not count:
            return
        row = int(np.argmax(wrong))
        where = ", ".join(f"{name} {column[row]}" for name, column in self._where.items())
        more = f", and in {count - 1:,} more rows" if count > 1 else ""
        self._fail(f"row {row:,}{f' ({where})' if where else ''}: {why}{more}; {_EXPORT}")

    def _fail_type(self, name: str, column: pa.ChunkedArray, wanted: str) -> NoReturn:
        kind = safe_text(str(column.type).partition("\n")[0])[:_MAX_REASON]
        self._fail(f"the column {name} is of {kind} instead of {wanted}; {_EXPORT}")

    def _fail(self, why: str) -> NoReturn:
        raise UnreadableError(f"{safe_text(str(self._path))}: {why}")


def _nanoseconds(seconds: Any) -> Ints:
    return np.asarray(np.rint(seconds * 1e9), dtype=np.int64)


def unknown_kinds(operations: Operations) -> Iterator[tuple[str, int]]:
    """Yield the types of operations that the format does not have, with their number."""
    counts = np.bincount(operations.kind, minlength=len(operations.kinds))
    for name, count in zip(operations.kinds, counts.tolist(), strict=True):
        if name not in KINDS:
            yield name, count
