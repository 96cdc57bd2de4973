"""Opens a run: its manifest, and its tables over all ranks as Arrow tables with names in clear."""

from __future__ import annotations

import dataclasses
import functools
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from profkit.errors import UnreadableError
from profkit.schema import SCHEMAS, is_name, open_schema
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.stream import StreamContent, checksum, read_row, read_stream
from profkit.vocab import END_FILE, RUN_FILE, STREAM_SUFFIX

Mapper: TypeAlias = Callable[..., Iterable[Any]]
"""`map`, or an executor's: gives the results in the order of what went in."""

LOST_NAME = "(name lost)"
_OF_FIGURES = ("steps", "spans", "collectives", "samples", "strings")
"""The tables that figures are made of; names last, so that those of a run that grows are all there. Kernels may be far larger, and are read where they are shown."""

_RANK_FOLDER = re.compile(r"r(\d{5})")


@dataclass(frozen=True)
class RankEnd:
    """The contents of `end.json`: why the rank's trace ended, and what should be in it."""

    reason: str
    tables: Mapping[str, Mapping[str, int]]

    @property
    def dropped(self) -> int:
        return sum(counts.get("dropped", 0) for counts in self.tables.values())

    @classmethod
    def read(cls, folder: Path) -> RankEnd | None:
        """The end record, or `None` where the rank did not get to write one."""
        path = folder / END_FILE
        if not path.exists():
            return None
        content = read_json(path)
        tables = content.get("tables")
        if not isinstance(tables, dict) or not all(map(_is_counts, tables.values())):
            raise UnreadableError(
                f"{safe_text(str(path))}: field 'tables' is not a table of counts; the file is damaged"
            )
        return cls(str(content.get("reason", "")), tables)


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(type(count) is int for count in value.values())


@dataclass(frozen=True)
class RankTrace:
    """One rank's folder, read table by table."""

    folder: Path
    rank: int

    @functools.cached_property
    def end(self) -> RankEnd | None:
        return RankEnd.read(self.folder)

    @functools.cached_property
    def manifest(self) -> RankManifest:
        return RankManifest.read(self.folder)

    def path(self, table: str) -> Path:
        return self.folder / (table + STREAM_SUFFIX)

    @functools.cached_property
    def _contents(self) -> dict[str, StreamContent]:
        return {}

    def content(self, table: str) -> StreamContent:
        """What can be read of a table, read once; a table that was never begun is empty and whole."""
        if table not in self._contents:
            self._contents[table] = self._hold_against_end(table, self._read(table, None))
        return self._contents[table]

    def _hold_against_end(self, table: str, found: StreamContent) -> StreamContent:
        """What was read, with the problem that the end record sees in it: rows that are missing, or a file that was changed.

        A flipped bit that leaves a well-formed file would else be a wrong figure that nobody notices.
        """
        try:
            promised = self.end.tables.get(table) if self.end else None
        except UnreadableError:  # told by whoever asks for the end record
            promised = None
        if not promised or found.problem:
            return found
        expected = promised.get("rows", 0)
        if found.rows != expected:
            return dataclasses.replace(
                found, problem=f"{found.rows:,} rows of {expected:,} can be read"
            )
        if expected and promised.get("crc32") != checksum(
            self.path(table), promised.get("bytes", 0)
        ):
            return dataclasses.replace(
                found,
                problem="its checksum differs from the one at its end; the file was changed",
                changed=True,
            )
        return found

    def _read(self, table: str, columns: Sequence[str] | None) -> StreamContent:
        path = self.path(table)
        return (
            read_stream(path, table, mapped=self._ended, columns=columns)
            if path.exists()
            else StreamContent((), "", closed=True)
        )

    @property
    def _ended(self) -> bool:
        return (self.folder / END_FILE).exists()

    @property
    def problems(self) -> Iterator[str]:
        """What is damaged in the tables that were read so far, in the same order whoever read them first."""
        for table, content in self._read_so_far():
            if content.problem:
                yield f"rank {self.rank}, {table}: {content.problem}" + (
                    "" if content.changed else "; rows after that place are lost"
                )

    @property
    def changed(self) -> Iterator[str]:
        """Which of the tables that were read so far are not as they were written."""
        yield from (
            f"rank {self.rank}, {table}"
            for table, content in self._read_so_far()
            if content.changed
        )

    def _read_so_far(self) -> Iterator[tuple[str, StreamContent]]:
        yield from ((table, self._contents[table]) for table in SCHEMAS if table in self._contents)

    def size(self, table: str) -> int | None:
        """Of the table's file; null where there is none."""
        path = self.path(table)
        return path.stat().st_size if path.exists() else None

    def take(self, contents: Mapping[str, StreamContent]) -> None:
        """What was read of these tables elsewhere, by `read_rank`."""
        self._contents.update(contents)

    @functools.cached_property
    def names(self) -> pa.Array:
        """The rank's names by id, with one more entry at the end for ids whose name was lost."""
        strings = pa.Table.from_batches(self.content("strings").batches, SCHEMAS["strings"])
        ids = strings["id"].to_numpy()
        dense = len(ids) == 0 or bool((ids == range(len(ids))).all())
        values = strings["value"].to_pylist() if dense else []
        return pa.array([*map(safe_text, values), LOST_NAME], pa.string())

    def table(self, table: str) -> pa.Table:
        """The rows of `table`, with names in place of ids."""
        return self._named(self.content(table).batches, open_schema(table))

    def select(self, table: str, columns: Sequence[str]) -> tuple[pa.Table, str]:
        """Some columns of a table that may be large, and what is damaged in it. Nothing is kept, and no other column is unpacked."""
        content = self._read(table, columns)
        return self._named(
            content.batches, pa.schema([open_schema(table).field(name) for name in columns])
        ), content.problem

    def row(self, table: str, place: int) -> dict[str, Any] | None:
        """One row of a table, names in clear; `None` where it cannot be read any more."""
        row = read_row(self.path(table), table, place, mapped=self._ended)
        if row is None:
            return None
        return {
            name: self._name_of(value) if is_name(SCHEMAS[table].field(name)) else value
            for name, value in row.items()
        }

    def _name_of(self, identity: int | None) -> str | None:
        lost = len(self.names) - 1
        return (
            None
            if identity is None
            else str(self.names[identity if 0 <= identity < lost else lost].as_py())
        )

    def _named(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        columns = []
        for field in schema:
            stored = pa.int32() if is_name(field) else field.type
            column = pa.chunked_array([batch[field.name] for batch in batches], stored)
            columns.append(name_ids(column, self.names) if is_name(field) else column)
        return pa.Table.from_arrays(columns, schema=schema)


def name_ids(ids: pa.ChunkedArray, names: pa.Array) -> pa.DictionaryArray:
    """Ids as names; the last of the names stands for those that were lost."""
    first, lost = (
        pa.scalar(0, pa.int32()),
        pa.scalar(len(names) - 1, pa.int32()),
    )  # Arrow guesses a bare number's type by importing dateutil
    known = pc.and_(pc.greater_equal(ids, first), pc.less(ids, lost))
    safe = pc.if_else(pc.or_kleene(known, pc.is_null(ids)), ids, lost)
    return pa.DictionaryArray.from_arrays(safe.combine_chunks(), names)


@dataclass(frozen=True)
class Trace:
    """A run on disk, opened for reading. Tables are read when first asked for, then kept."""

    path: Path
    manifest: RunManifest
    ranks: tuple[RankTrace, ...]

    @classmethod
    def open(cls, run: str | Path) -> Trace:
        """Open a run's folder; an `UnreadableError` says what is wrong with it and what would help."""
        path = Path(run)
        check_folder(path)
        return cls(path, RunManifest.read(path), tuple(find_ranks(path)))

    @property
    def name(self) -> str:
        return safe_text(self.path.resolve().name)

    @functools.cached_property
    def steps(self) -> pa.Table:
        return self.table("steps")

    @functools.cached_property
    def spans(self) -> pa.Table:
        return self.table("spans")

    @functools.cached_property
    def kernels(self) -> pa.Table:
        return self.table("kernels")

    @functools.cached_property
    def collectives(self) -> pa.Table:
        return self.table("collectives")

    @functools.cached_property
    def samples(self) -> pa.Table:
        return self.table("samples")

    def table(self, table: str) -> pa.Table:
        """All ranks' rows of one table, rank after rank, names as one dictionary."""
        parts = [rank.table(table) for rank in self.ranks]
        if not parts:
            return open_schema(table).empty_table()
        return pa.concat_tables(parts).unify_dictionaries()

    def read_with(self, each: Mapper) -> None:
        """Read what figures are made of rank by rank with `each`; on another machine, the run must lie at the same place."""
        folders = [str(rank.folder.absolute()) for rank in self.ranks]
        sizes = [{table: rank.size(table) for table in _OF_FIGURES} for rank in self.ranks]
        for rank, contents in zip(
            self.ranks,
            each(read_rank, folders, [rank.rank for rank in self.ranks], sizes),
            strict=True,
        ):
            rank.take(contents)

    @property
    def dropped(self) -> int:
        """Rows that the job handed over and that were not written."""
        return sum(rank.end.dropped for rank in self.ranks if rank.end)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is damaged in the tables that were read so far; rows before the damage are in the tables."""
        return tuple(problem for rank in self.ranks for problem in rank.problems)

    @property
    def changed(self) -> tuple[str, ...]:
        """Which of the tables that were read so far were changed since they were written: no figure of theirs can be believed."""
        return tuple(place for rank in self.ranks for place in rank.changed)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job's world that left no folder."""
        return tuple(
            sorted(set(range(self.manifest.world_size)) - {rank.rank for rank in self.ranks})
        )


def read_rank(folder: str, rank: int, sizes: Mapping[str, int | None]) -> dict[str, StreamContent]:
    """What can be read of these tables of one rank."""
    own = RankTrace(Path(folder), rank)
    for table, size in sizes.items():
        check_seen(own, table, size)
    return {table: own.content(table) for table in sizes}


def check_seen(rank: RankTrace, table: str, size: int | None) -> None:
    """An `UnreadableError` where the file that was asked for, which may have grown, is not here: one that is not seen is no file without rows."""
    seen = rank.size(table)
    if size is not None and (seen is None or seen < size):
        raise UnreadableError(
            f"{safe_text(str(rank.folder))}: {platform.node()} does not see the {table} that lie there; ranks are read where the folder is shared"
        )


def find_ranks(run: Path) -> Iterator[RankTrace]:
    for folder in sorted(run.iterdir()):
        if (match := _RANK_FOLDER.fullmatch(folder.name)) and folder.is_dir():
            yield RankTrace(folder, int(match[1]))


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(file.stat().st_mtime_ns, file.parent) for file in folder.glob("*/" + RUN_FILE)]
    return [path for _, path in sorted(found)]


def check_folder(path: Path) -> None:
    shown = safe_text(str(path))
    try:
        entries = sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        raise UnreadableError(f"{shown}: no such folder{_runs_beside(path)}") from None
    except NotADirectoryError:
        raise UnreadableError(
            f"{shown}: a file, and a run is a folder; other tools' traces and logs are not runs"
        ) from None
    except PermissionError:
        raise UnreadableError(
            f"{shown}: no permission to read it; run as its owner, or have the owner allow it with chmod"
        ) from None
    if RUN_FILE in entries:
        return
    if not entries:
        raise UnreadableError(
            f"{shown}: an empty folder; a run is made by 'profkit trace WORKLOAD'"
        )
    runs = find_runs(path)
    if runs:
        raise UnreadableError(
            f"{shown}: holds {len(runs)} runs and is none itself; name one, such as {safe_text(str(runs[-1]))}"
        )
    raise UnreadableError(f"{shown}: not a run (it has no {RUN_FILE}){_runs_beside(path)}")


def _runs_beside(path: Path) -> str:
    runs = find_runs(path.parent)
    return f"; the newest run beside it is {safe_text(str(runs[-1]))}" if runs else ""
