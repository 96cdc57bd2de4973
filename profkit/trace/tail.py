"""Follows a run that is being written: reads what was appended, and never the same bytes twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from profkit.schema import SCHEMAS, is_name, open_schema
from profkit.text import safe_text
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.reader import LOST_NAME, find_ranks, name_ids
from profkit.trace.stream import DAMAGE, conform_batch
from profkit.vocab import STREAM_SUFFIX

MOST_BYTES: Final = 4_000_000
"""So much of a table is read at once at most, so that a look at a long run takes bounded time; the next look goes on from there."""

KEPT_ROWS: Final = {"steps": 1_000, "spans": 10_000}
"""The last rows of each table that are kept."""

MOST_RANKS: Final = 8
"""So many ranks are followed; those of a large job are alike, and each costs as much as the first."""


@dataclass
class StreamTail:
    """The place up to which one table of one rank has been read."""

    path: Path
    table: str
    _at: int = 0
    _reach: int = MOST_BYTES
    _schema: pa.Schema | None = None

    def read(self) -> list[pa.RecordBatch]:
        """The whole batches that are new; what is not whole yet is read when it is."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                content = file.read(self._reach)
        except OSError:
            return []
        found = list(self._messages(content))
        self._reach = MOST_BYTES if found or len(content) < self._reach else 2 * self._reach
        return found

    @property
    def behind(self) -> bool:
        """Whether there is more to read at once."""
        try:
            return self._reach > MOST_BYTES or self.path.stat().st_size - self._at >= MOST_BYTES
        except OSError:
            return False

    def _messages(self, content: bytes) -> Iterator[pa.RecordBatch]:
        source = pa.BufferReader(content)
        start = self._at
        try:
            if self._schema is None:
                self._schema = pa.ipc.read_schema(source)
                self._at = start + source.tell()
            while source.tell() < len(content):
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)
                batch.validate(full=True)
                yield conform_batch(batch, self.table)
                self._at = start + source.tell()
        except DAMAGE:
            return


@dataclass
class RunTail:
    """The latest steps of a run that is being written, and their spans."""

    path: Path
    _tails: dict[tuple[int, str], StreamTail] = field(default_factory=dict)
    _rows: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    _names: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _ranks: dict[int, RankManifest] = field(default_factory=dict)

    def look(self) -> Latest:
        """Read what is new, in bounded time."""
        manifest = RunManifest.read(self.path)
        ranks = list(find_ranks(self.path))
        for rank in ranks[:MOST_RANKS]:
            if rank.rank not in self._ranks:
                self._ranks[rank.rank] = rank.manifest
            new = {
                table: self._read(rank.folder, rank.rank, table)
                for table in (*KEPT_ROWS, "strings")
            }  # names last: those of all rows are then there
            self._names[rank.rank] += [
                safe_text(value)
                for batch in new.pop("strings")
                for value in batch["value"].to_pylist()
            ]
            names = pa.array([*self._names[rank.rank], LOST_NAME], pa.string())
            for table, batches in new.items():
                self._rows[table] += [_named(batch, table, names) for batch in batches]
        return Latest(
            manifest,
            dict(self._ranks),
            self._table("steps"),
            self._table("spans"),
            len(ranks),
            any(tail.behind for tail in self._tails.values()),
        )

    def _read(self, folder: Path, rank: int, table: str) -> list[pa.RecordBatch]:
        return self._tails.setdefault(
            (rank, table), StreamTail(folder / (table + STREAM_SUFFIX), table)
        ).read()

    def _table(self, table: str) -> pa.Table:
        """The last rows of the ranks that are followed; batches that are older than these are let go."""
        kept: list[pa.RecordBatch] = []
        rows = 0
        for batch in reversed(self._rows[table]):
            kept.append(batch)
            rows += batch.num_rows
            if rows >= KEPT_ROWS[table] * max(1, len(self._ranks)):
                break
        self._rows[table] = kept[::-1]
        return pa.Table.from_batches(self._rows[table], open_schema(table)).unify_dictionaries()


def _named(batch: pa.RecordBatch, table: str, names: pa.Array) -> pa.RecordBatch:
    columns = [
        name_ids(pa.chunked_array([column]), names) if is_name(stored) else column
        for stored, column in zip(SCHEMAS[table], batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=open_schema(table))


@dataclass(frozen=True)
class Latest:
    """What a look at a run found. `behind` says that there is more to read at once."""

    manifest: RunManifest
    ranks: dict[int, RankManifest]
    steps: pa.Table
    spans: pa.Table
    ranks_in_all: int
    behind: bool

    @property
    def newest_ns(self) -> int | None:
        """When the last step that is known ended, as a time of day."""
        ends = []
        for rank, manifest in self.ranks.items():
            mine = self.steps.filter(pc.equal(self.steps["rank"], rank))
            if mine.num_rows:
                ends.append(
                    pc.max(mine["end_ns"]).as_py()
                    - manifest.anchor.monotonic_ns
                    + manifest.anchor.realtime_ns
                )
        return max(ends, default=None)
