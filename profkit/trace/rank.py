"""One rank's folder of a run, read table by table."""

from __future__ import annotations

import dataclasses
import functools
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from profkit.errors import UnreadableError
from profkit.schema import SCHEMAS, is_name, open_schema
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json
from profkit.trace.manifest import RankManifest
from profkit.trace.stream import StreamContent, checksum, read_row, read_stream
from profkit.vocab import END_FILE, STREAM_SUFFIX

LOST_NAME = "(name lost)"


@dataclass(frozen=True)
class RankEnd:
    """The contents of `end.json`: why the rank's trace ended, and what each table should hold."""

    reason: str
    tables: Mapping[str, Mapping[str, int]]

    @property
    def dropped(self) -> int:
        return sum(counts.get("dropped", 0) for counts in self.tables.values())

    @classmethod
    def read(cls, folder: Path) -> RankEnd | None:
        """Read the end record; return `None` if the rank was killed before it wrote one."""
        path = folder / END_FILE
        if not path.exists():
            return None
        content = read_json(path)
        tables = content.get("tables")
        if not isinstance(tables, dict) or not all(map(_is_counts, tables.values())):
            problem = "field 'tables' is not a table of counts; the file is damaged"
            raise UnreadableError(f"{safe_text(str(path))}: {problem}")
        return cls(str(content.get("reason", "")), tables)


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(type(count) is int for count in value.values())


class RankTrace:
    """One rank's folder. Each table is read when it is first asked for, then kept."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self._contents: dict[str, StreamContent] = {}

    @functools.cached_property
    def end(self) -> RankEnd | None:
        return RankEnd.read(self.folder)

    @functools.cached_property
    def manifest(self) -> RankManifest:
        return RankManifest.read(self.folder)

    def path(self, table: str) -> Path:
        return self.folder / (table + STREAM_SUFFIX)

    def size(self, table: str) -> int | None:
        """Return the size of the table's file, or `None` if there is no file."""
        path = self.path(table)
        return path.stat().st_size if path.exists() else None

    def content(self, table: str) -> StreamContent:
        """Return the readable part of a table. A table that was never begun is empty and whole."""
        if table not in self._contents:
            self._contents[table] = self._check_against_end(table, self._read(table, None))
        return self._contents[table]

    def take(self, contents: Mapping[str, StreamContent]) -> None:
        """Keep tables that `read_rank` has read in another process."""
        self._contents.update(contents)

    def _read(self, table: str, columns: Sequence[str] | None) -> StreamContent:
        path = self.path(table)
        if not path.exists():
            return StreamContent((), "", closed=True)
        return read_stream(path, table, mapped=self._is_ended, columns=columns)

    @property
    def _is_ended(self) -> bool:
        return (self.folder / END_FILE).exists()

    def _check_against_end(self, table: str, found: StreamContent) -> StreamContent:
        """Add the problem that the end record shows: missing rows, or a changed file.

        Without this check, a flipped bit in a well-formed file is a wrong figure.
        """
        promised = self._promised(table)
        if not promised or found.problem:
            return found
        expected = promised.get("rows", 0)
        if found.rows != expected:
            missing = f"{found.rows:,} rows of {expected:,} can be read"
            return dataclasses.replace(found, problem=missing)
        sound = promised.get("crc32")
        if expected and sound != checksum(self.path(table), promised.get("bytes", 0)):
            differs = "its checksum differs from the one at its end; the file was changed"
            return dataclasses.replace(found, problem=differs, changed=True)
        return found

    def _promised(self, table: str) -> Mapping[str, int] | None:
        """Return the end record's counts of a table. A damaged end record is reported elsewhere."""
        try:
            return self.end.tables.get(table) if self.end else None
        except UnreadableError:
            return None

    @property
    def problems(self) -> Iterator[str]:
        """Damage in the tables that were read so far, in the order of the schema."""
        for table, content in self._read_so_far():
            if content.problem:
                lost = "" if content.changed else "; rows after that place are lost"
                yield f"rank {self.rank}, {table}: {content.problem}{lost}"

    @property
    def changed(self) -> Iterator[str]:
        """Tables, of those read so far, that differ from what was written."""
        for table, content in self._read_so_far():
            if content.changed:
                yield f"rank {self.rank}, {table}"

    def _read_so_far(self) -> Iterator[tuple[str, StreamContent]]:
        for table in SCHEMAS:
            if table in self._contents:
                yield table, self._contents[table]

    @functools.cached_property
    def names(self) -> pa.Array:
        """The rank's names by id. The last entry stands for ids whose name was lost."""
        strings = pa.Table.from_batches(self.content("strings").batches, SCHEMAS["strings"])
        ids = strings["id"].to_numpy()
        values = []
        if (ids == range(len(ids))).all():
            values = strings["value"].to_pylist()
        return pa.array([*map(safe_text, values), LOST_NAME], pa.string())

    def table(self, table: str) -> pa.Table:
        """Return the rows of a table, with names in place of ids."""
        return self._named(self.content(table).batches, open_schema(table))

    def select(self, table: str, columns: Sequence[str]) -> tuple[pa.Table, str]:
        """Return some columns of a table, and its damage. Unpack no others and keep nothing."""
        content = self._read(table, columns)
        schema = pa.schema([open_schema(table).field(name) for name in columns])
        return self._named(content.batches, schema), content.problem

    def row(self, table: str, place: int) -> dict[str, Any] | None:
        """Return one row, with names in place of ids, or `None` if it can no longer be read."""
        row = read_row(self.path(table), table, place, mapped=self._is_ended)
        if row is None:
            return None
        for name, value in row.items():
            if value is not None and is_name(SCHEMAS[table].field(name)):
                row[name] = self._name_of(value)
        return row

    def _name_of(self, identity: int) -> str:
        lost = len(self.names) - 1
        known = 0 <= identity < lost
        return str(self.names[identity if known else lost].as_py())

    def _named(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        columns = []
        for field in schema:
            stored = pa.int32() if is_name(field) else field.type
            column = pa.chunked_array([batch[field.name] for batch in batches], stored)
            if is_name(field):
                column = name_ids(column, self.names)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=schema)


def name_ids(ids: pa.ChunkedArray, names: pa.Array) -> pa.DictionaryArray:
    """Return ids as names. The last of the names stands for those that were lost."""
    # Typed scalars: to guess a bare number's type, Arrow imports dateutil.
    first = pa.scalar(0, pa.int32())
    lost = pa.scalar(len(names) - 1, pa.int32())
    known = pc.and_(pc.greater_equal(ids, first), pc.less(ids, lost))
    safe = pc.if_else(pc.or_kleene(known, pc.is_null(ids)), ids, lost)
    return pa.DictionaryArray.from_arrays(safe.combine_chunks(), names)


def read_rank(folder: str, rank: int, sizes: Mapping[str, int | None]) -> dict[str, StreamContent]:
    """Read tables of one rank, each of at least this size. Also called on other machines."""
    own = RankTrace(Path(folder), rank)
    for table, size in sizes.items():
        check_seen(own, table, size)
    return {table: own.content(table) for table in sizes}


def check_seen(rank: RankTrace, table: str, size: int | None) -> None:
    """Raise an `UnreadableError` if this machine does not see the file that was asked for.

    A file that is not seen must not pass for a table without rows. It may have grown meanwhile.
    """
    seen = rank.size(table)
    if size is not None and (seen is None or seen < size):
        problem = f"{platform.node()} does not see the {table} that lie there"
        remedy = "ranks are read where the folder is shared"
        raise UnreadableError(f"{safe_text(str(rank.folder))}: {problem}; {remedy}")
