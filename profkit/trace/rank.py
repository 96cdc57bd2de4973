"""One rank's folder of a run, read table by table."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.address import to_path
from profkit.errors import UnreadableError
from profkit.schema import SCHEMAS, is_name, open_schema
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json
from profkit.trace.manifest import RankManifest
from profkit.trace.recent import recent_file
from profkit.trace.sampled import step_levels
from profkit.trace.stream import StreamContent, file_checksum, read_row, read_stream
from profkit.vocab import END_FILE, EYE, EYE_TABLES, RECENT, STREAM_SUFFIX, THINNED_TABLES

LOST_NAME = "(name lost)"


@dataclass(frozen=True)
class RankEnd:
    """The contents of `end.json`: why the rank's trace ended, and what each table should hold."""

    reason: str
    tables: Mapping[str, Mapping[str, int]]
    dropped: int
    recent: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    """The same of the rows of a long run that were not thinned."""


class RankTrace:
    """One rank's folder. Each table is read when it is first asked for, then kept."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = to_path(folder)
        self.rank = rank
        self.contents: dict[str, StreamContent] = {}
        """The tables that were read, also those that another process has read."""
        self.level = 0
        """Spans and collectives are kept of the steps of this level and above it alone."""

    @functools.cached_property
    def is_ended(self) -> bool:
        """True if the rank had written its end record when this was first asked."""
        return (self.folder / END_FILE).exists()

    @functools.cached_property
    def end(self) -> RankEnd | None:
        """The end record, or `None` if the rank was killed before it wrote one."""
        path = self.folder / END_FILE
        if not os.path.lexists(path):
            return None
        content = read_json(path)
        tables: Any = content.get("tables")
        recent: Any = content.get(RECENT, {})
        for field, each in ("tables", tables), (RECENT, recent):
            if not _are_counts(each):
                problem = f"field '{field}' is not a table of counts; the file is damaged"
                raise UnreadableError(f"{safe_text(str(path))}: {problem}")
        dropped = sum(counts.get("dropped", 0) for counts in tables.values())
        return RankEnd(str(content.get("reason", "")), tables, dropped, recent)

    @functools.cached_property
    def manifest(self) -> RankManifest:
        return RankManifest.read(self.folder)

    @functools.cached_property
    def eye(self) -> RankTrace | None:
        """What a process outside of the job wrote of this rank; `None` if there was none."""
        folder = self.folder / EYE
        return RankTrace(folder, self.rank) if folder.is_dir() else None

    def _elsewhere(self, table: str) -> RankTrace | None:
        """Return the folder of a table that the rank did not write itself."""
        return self.eye if table in EYE_TABLES else None

    def path(self, table: str) -> Path:
        return (self._elsewhere(table) or self).folder / (table + STREAM_SUFFIX)

    def size(self, table: str) -> int | None:
        """Return the size of the table's file, or `None` if there is no file."""
        with contextlib.suppress(FileNotFoundError):
            return self.path(table).stat().st_size
        return None

    def content(self, table: str) -> StreamContent:
        """Return the readable part of a table. A table that was never begun is empty and whole."""
        elsewhere = self._elsewhere(table)
        if elsewhere is not None:
            return elsewhere.content(table)
        if table not in self.contents:
            found = self._check_against_end(table, self._read(table, None), self.path(table))
            recent = self.recent_path(table)
            if recent is not None:
                rest = self._check_against_end(table, self._read(table, None, recent), recent)
                found = _join(found, rest)
            elif self._lacks_recent(table) and not found.problem:
                found = dataclasses.replace(found, problem="its recent rows are missing")
            if self.level and table in OF_STEPS:
                batches = tuple(_of_level(batch, self.level) for batch in found.batches)
                found = dataclasses.replace(found, batches=batches)
            self.contents[table] = found
        return self.contents[table]

    @functools.cached_property
    def last_part(self) -> int:
        """The number of the last part of a long run that was thinned; -1 if none was."""
        parts = [-1]
        for batch in self.content("sums").batches:
            parts.append(batch["part"].to_numpy().max())
        return int(max(parts))

    def recent_path(self, table: str) -> Path | None:
        """Return the file of the table's rows that are not thinned yet, if there is one."""
        if table not in THINNED_TABLES or not (self.folder / RECENT).exists():
            return None
        path = self.folder / RECENT / recent_file(self.last_part + 1, table)
        return path if path.exists() else None

    def _lacks_recent(self, table: str) -> bool:
        """Return true if the end record counts recent rows."""
        with contextlib.suppress(UnreadableError):  # `verify` reports a damaged end record
            return self.end is not None and bool(self.end.recent.get(table, {}).get("rows"))
        return False

    def _read(
        self, table: str, columns: Sequence[str] | None, path: Path | None = None
    ) -> StreamContent:
        path = path or self.path(table)
        if not os.path.lexists(path):
            return StreamContent((), "", closed=True)
        return read_stream(path, table, mapped=self.is_ended, columns=columns)

    def _check_against_end(self, table: str, found: StreamContent, path: Path) -> StreamContent:
        """Add the problem that the end record shows: missing rows, or a changed file.

        Without this check, a flipped bit in a well-formed file is a wrong figure.
        """
        promised = None
        with contextlib.suppress(UnreadableError):  # `verify` reports a damaged end record
            if self.end is not None:
                is_recent = path.parent != self.folder
                promised = (self.end.recent if is_recent else self.end.tables).get(table)
        if not promised or found.problem:
            return found
        expected = promised.get("rows", 0)
        if found.rows != expected:
            missing = f"{found.rows:,} rows of {expected:,} can be read"
            return dataclasses.replace(found, problem=missing)
        if not expected:
            return found
        size = promised.get("bytes", 0)
        seen = found.checksum or (size, file_checksum(path, size))
        if seen != (size, promised.get("crc32")):
            differs = "its checksum differs from the one at its end; the file was changed"
            return dataclasses.replace(found, problem=differs, changed=True)
        return found

    @property
    def problems(self) -> Iterator[str]:
        """Damage in the tables that were read so far."""
        for table, content in self.read_so_far():
            if content.problem:
                lost = "" if content.changed else "; rows after that place are lost"
                yield f"rank {self.rank}, {table}: {content.problem}{lost}"

    def read_so_far(self) -> Iterator[tuple[str, StreamContent]]:
        """Yield the tables that were read, in the order of the schema."""
        for table in SCHEMAS:
            contents = (self._elsewhere(table) or self).contents
            if table in contents:
                yield table, contents[table]

    @functools.cached_property
    def names(self) -> pa.Array:
        """The rank's names by id. The last entry stands for ids whose name was lost."""
        strings = pa.Table.from_batches(self.content("strings").batches, SCHEMAS["strings"])
        ids = strings["id"].to_numpy()
        values = []
        if (ids == np.arange(len(ids))).all():
            values = strings["value"].to_pylist()
        return _safe_names(*values)

    def table(self, table: str) -> pa.Table:
        """Return the rows of a table, with names in place of ids."""
        elsewhere = self._elsewhere(table)
        if elsewhere is not None:
            return elsewhere.table(table)
        rows = self._own_table(table)
        if table == "samples" and self.eye is not None:
            return pa.concat_tables([rows, self.eye.table(table)])
        return rows

    def _own_table(self, table: str) -> pa.Table:
        batches = self.content(table).batches
        if not batches:
            return empty_table(table)
        rows = self._named(batches, open_schema(table))
        if table in OF_STEPS and self._runs_on_host:
            return release_last(rows, self.content("steps").batches)
        return rows

    @functools.cached_property
    def _runs_on_host(self) -> bool:
        """True if no device works on for a step after the host has ended it."""
        with contextlib.suppress(UnreadableError):
            return self.manifest.device == HOST
        return False

    def select(self, table: str, columns: Sequence[str]) -> tuple[pa.Table, str]:
        """Return some columns of a table, and its damage. Unpack no others and keep nothing."""
        elsewhere = self._elsewhere(table)
        if elsewhere is not None:
            return elsewhere.select(table, columns)
        content, recent = self._read(table, columns), self.recent_path(table)
        if recent is not None:
            content = _join(content, self._read(table, columns, recent))
        schema = pa.schema([open_schema(table).field(name) for name in columns])
        return self._named(content.batches, schema), content.problem

    def row(self, table: str, place: int) -> dict[str, Any] | None:
        """Return one row, with names in place of ids, or `None` if it can no longer be read."""
        elsewhere = self._elsewhere(table)
        if elsewhere is not None:
            return elsewhere.row(table, place)
        row = read_row(self.path(table), table, place, mapped=self.is_ended)
        recent = self.recent_path(table)
        if row is None and recent is not None:
            place -= self._read(table, ["rank"]).rows
            row = read_row(recent, table, place, mapped=self.is_ended) if place >= 0 else None
        if row is None:
            return None
        for name, value in row.items():
            if value is not None and is_name(SCHEMAS[table].field(name)):
                is_known = 0 <= value < len(self.names) - 1
                row[name] = str(self.names[value if is_known else -1].as_py())
        return row

    def _named(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        if not batches:
            return schema.empty_table()
        return with_names(batches, self.names, schema)


@functools.lru_cache(maxsize=8)
def _safe_names(*values: str) -> pa.Array:
    """Return names as an array; the ranks of a run mostly have the same ones."""
    return pa.array([*map(safe_text, values), LOST_NAME], pa.string())


@functools.cache
def empty_table(table: str) -> pa.Table:
    """Return a table without rows; of many ranks, many have no rows in some tables."""
    return open_schema(table).empty_table()


def with_names(batches: Sequence[pa.RecordBatch], names: pa.Array, schema: pa.Schema) -> pa.Table:
    """Return stored rows with names in place of ids; the last of `names` stands for lost ones."""
    if not batches:
        return schema.empty_table()
    stored = pa.Table.from_batches(batches)
    columns = []
    for field in schema:
        column = stored[field.name]
        if pa.types.is_dictionary(field.type):
            column = name_ids(column, names)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _of_level(batch: pa.RecordBatch, level: int) -> pa.RecordBatch:
    """Return the rows of some steps, and those outside all steps."""
    step = batch["step"]
    kept = step_levels(step.fill_null(0).to_numpy()) >= level
    if step.null_count:
        kept |= step.is_null().to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(kept))


def _are_counts(tables: Any) -> bool:
    """Return true if this is a table of counts for each name, as `end.json` has them."""
    if not isinstance(tables, dict):
        return False
    for counts in tables.values():
        if not isinstance(counts, dict) or not {int}.issuperset(map(type, counts.values())):
            return False
    return True


def _join(older: StreamContent, recent: StreamContent) -> StreamContent:
    """Return the rows that a long run kept, with those that are not thinned yet."""
    return StreamContent(
        (*older.batches, *recent.batches),
        older.problem or recent.problem,
        closed=older.closed and recent.closed,
        changed=older.changed or recent.changed,
    )


def name_ids(ids: pa.ChunkedArray, names: pa.Array) -> pa.DictionaryArray:
    """Return ids as names. The last of the names stands for those that were lost."""
    with contextlib.suppress(pa.ArrowException):  # some are lost; the way below costs ten calls
        return pa.DictionaryArray.from_arrays(ids.combine_chunks(), names)
    # Typed scalars: to guess a bare number's type, Arrow imports dateutil.
    first = pa.scalar(0, pa.int32())
    lost = pa.scalar(len(names) - 1, pa.int32())
    known = pc.and_(pc.greater_equal(ids, first), pc.less(ids, lost))
    safe = pc.if_else(pc.or_kleene(known, pc.is_null(ids)), ids, lost)
    return pa.DictionaryArray.from_arrays(safe.combine_chunks(), names)


def check_seen(rank: RankTrace, table: str, size: int | None) -> None:
    """Raise an `UnreadableError` if this machine does not see the file that was asked for.

    A file that is not seen must not pass for a table without rows. It may have grown meanwhile.
    """
    seen = rank.size(table)
    if size is not None and (seen is None or seen < size):
        problem = f"{platform.node()} does not see the {table} that lie there"
        remedy = "ranks are read where the folder is shared"
        raise UnreadableError(f"{safe_text(str(rank.folder))}: {problem}; {remedy}")


# The rows of what a rank did after its last step.
HOST: Final = "cpu"
"""The device of ranks whose rows begin while their step is open; a device may work on later."""

OF_STEPS: Final = frozenset(["spans", "collectives"])
"""The tables whose rows name the step that was open when they began."""


def release_last(rows: pa.Table, steps: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the rows with no step for those that begin after the end of the rank's last one.

    The end of a loop without a loader is known only when the job ends. A barrier or an evaluation
    after it was noted for the last step, which does not contain it.
    """
    batch = next((each for each in reversed(steps) if each.num_rows), None)
    if batch is None:
        return rows
    last, end_ns = batch["step"][-1], batch["end_ns"][-1]
    is_later = pc.and_(pc.equal(rows["step"], last), pc.greater(rows["start_ns"], end_ns))
    if not pc.any(is_later).as_py():
        return rows
    place = rows.schema.get_field_index("step")
    step = pc.if_else(pc.fill_null(is_later, fill_value=False), None, rows["step"])
    return rows.set_column(place, rows.schema.field("step"), step)
