"""Follow a run while it is written, and never read the same bytes twice."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from profkit.plain_file import open_plain
from profkit.schema import SCHEMAS, is_name, open_schema
from profkit.text import safe_text
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.reader import LOST_NAME, find_ranks, name_ids
from profkit.trace.sharing import find_sharing, share_samples
from profkit.trace.stream import DAMAGE, conform_batch
from profkit.trace.unpacking import Unpacking, check_names
from profkit.vocab import (
    CHANGES,
    KERNELS,
    RECENT,
    STREAM_SUFFIX,
    THINNED_TABLES,
)

MOST_BYTES: Final = 4_000_000
"""Bytes of a table that are read at once, so that a look at a long run takes bounded time."""

KEPT_ROWS: Final = {"steps": 1_000, "spans": 10_000}
"""The last rows of each table that are kept."""

MARKING_SOURCES: Final = (KERNELS, CHANGES)
"""The sources of readings that mark steps as unlike the job's own."""

MOST_MARKS: Final = 20_000
"""Readings of these sources that are kept of each rank."""

MOST_RANKS: Final = 8
"""Number of ranks that are followed. Each costs the same, and ranks of large jobs are alike."""


@dataclass
class StreamTail:
    """The place up to which one table of one rank has been read."""

    path: Path
    table: str
    _at: int = 0
    _reach: int = MOST_BYTES
    behind: bool = False
    """True if there was more than was read at once."""
    _schema: pa.Schema | None = None

    def read(self, most: int | None = None) -> list[pa.RecordBatch]:
        """Return new batches that are whole. The rest is read when it is complete.

        Of more than `most` rows, only the last batches are unpacked.
        """
        try:
            with open_plain(self.path) as file:
                file.seek(self._at)
                content = file.read(self._reach)
        except OSError:
            self.behind = False
            return []
        self.behind = len(content) == self._reach
        messages = []
        source = pa.BufferReader(content)
        start = self._at
        with contextlib.suppress(*DAMAGE):
            if self._schema is None:
                self._schema = pa.ipc.read_schema(source)
                self._at = start + source.tell()
            while source.tell() < len(content):
                messages.append(pa.ipc.read_message(source))
                self._at = start + source.tell()
        if messages or len(content) < self._reach:
            self._reach = MOST_BYTES
        else:
            self._reach *= 2  # a message is longer than what was read
        return self._unpack(messages, most)

    def _unpack(self, messages: list[pa.Message], most: int | None) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        rows, unpacking = 0, Unpacking(sum(message.body.size for message in messages))
        with contextlib.suppress(*DAMAGE):
            for message in reversed(messages):
                unpacking.add(message)
                batch = pa.ipc.read_record_batch(message, self._schema)
                batch.validate()
                found.append(batch)
                rows += batch.num_rows
                if most is not None and rows >= most:
                    break
        if not found:
            return []
        # One batch takes far less time than many small ones to bring into the contract's columns.
        whole = pa.Table.from_batches(found[::-1]).combine_chunks().to_batches()
        with contextlib.suppress(*DAMAGE):
            for batch in whole:
                batch.validate(full=True)
                if self.table == "strings":
                    check_names(batch)
            return [conform_batch(batch, self.table) for batch in whole]
        return []


@dataclass
class TableTail:
    """Follows a table also once it is thinned, by the files of the parts."""

    folder: Path
    table: str
    repeats_from: int | None = None
    """The first step that the last reading repeats, because it began a part; else `None`."""
    _tail: StreamTail | None = None
    _is_new_part: bool = False

    def read(self) -> list[pa.RecordBatch]:
        """Return what is new; a part is left once it has been read to its end.

        Rows are missed if nothing was read for two parts: older ones are removed.
        """
        self.repeats_from = None
        most = KEPT_ROWS.get(self.table)
        files: list[Path] = []
        if self.table in THINNED_TABLES and (self.folder / RECENT).exists():
            files = sorted((self.folder / RECENT).glob(f"*-{self.table}{STREAM_SUFFIX}"))
        if self._tail is None:
            main = self.folder / (self.table + STREAM_SUFFIX)
            self._tail = StreamTail(files[-1] if files else main, self.table)
        found = self._without_repeated([], self._tail.read(most))
        for file in files:
            is_later = self._tail.path.parent.name != RECENT or file > self._tail.path
            if is_later and not self._tail.behind:
                self._is_new_part = self._tail.path.parent.name == RECENT
                self._tail = StreamTail(file, self.table)
                found = self._without_repeated(found, self._tail.read(most))
        return found

    def _without_repeated(
        self, found: list[pa.RecordBatch], fresh: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """Add the rows of a part; its first ones repeat the last steps of the part before."""
        if not self._is_new_part or not fresh or self.table not in KEPT_ROWS:
            return found + fresh
        self._is_new_part = False
        first = pc.min(pa.chunked_array([batch["step"] for batch in fresh])).as_py()
        if first is None:
            return found + fresh
        self.repeats_from = min(first, self.repeats_from or first)
        return [batch.filter(pc.less(batch["step"], first)) for batch in found] + fresh

    @property
    def behind(self) -> bool:
        return self._tail is not None and self._tail.behind


@dataclass
class RunTail:
    """The latest steps of a run that is being written, and their spans.

    With `marks`, also the readings by which some steps are excluded from figures.
    """

    path: Path
    marks: bool = False
    only: Path | None = None
    """The folder of the one rank that is followed; without it, the first ones are."""
    _tails: dict[tuple[int, str], TableTail] = field(default_factory=dict)
    _rows: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    _names: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _ranks: dict[int, RankManifest] = field(default_factory=dict)

    def look(self) -> Latest:
        """Read what is new, in bounded time."""
        manifest = RunManifest.read(self.path)
        ranks = list(find_ranks(self.path))
        followed = [rank for rank in ranks if self.only in (None, rank.folder)]
        for rank in followed[:MOST_RANKS]:
            known = self._ranks.get(rank.rank)
            if known is None or not known.config:  # it is written after the first steps
                self._ranks[rank.rank] = rank.manifest
            new = {}
            for table in self._tables:
                tail = self._tails.setdefault((rank.rank, table), TableTail(rank.folder, table))
                new[table] = tail.read()
                if tail.repeats_from is not None:
                    self._forget(rank.rank, table, tail.repeats_from)
            for batch in new["strings"]:
                self._names[rank.rank] += map(safe_text, batch["value"].to_pylist())
            names = pa.array([*self._names[rank.rank], LOST_NAME], pa.string())
            for table in (*KEPT_ROWS, "events"):
                for batch in new.get(table, ()):
                    self._rows[table].append(_named(batch, table, names))
            for batch in new.get("samples", ()):
                marks = _marks_of(batch, self._names[rank.rank])
                if marks.num_rows:
                    self._rows["samples"].append(_named(marks, "samples", names))
        return Latest(
            manifest.with_ranks([*self._ranks.values()]),
            dict(self._ranks),
            share_samples(self._table("steps"), find_sharing([*self._ranks.values()])),
            self._table("spans"),
            self._table("samples"),
            self._table("events"),
            len(ranks),
            any(tail.behind for tail in self._tails.values()),
        )

    @property
    def _tables(self) -> tuple[str, ...]:
        """The tables in the order in which they are read.

        Marks come after the steps, and names last: those of all rows that were read are there.
        """
        return (*KEPT_ROWS, *(("samples", "events") if self.marks else ()), "strings")

    def _forget(self, rank: int, table: str, first: int) -> None:
        """Forget the rows of a rank from this step on, which were read again."""
        for place, batch in enumerate(self._rows[table]):
            other = pc.not_equal(batch["rank"], pa.scalar(rank, pa.int32()))
            self._rows[table][place] = batch.filter(pc.or_(other, pc.less(batch["step"], first)))

    def _table(self, table: str) -> pa.Table:
        """Return the last rows of the followed ranks, and release older batches."""
        kept: list[pa.RecordBatch] = []
        rows = 0
        most = KEPT_ROWS.get(table, MOST_MARKS) * max(1, len(self._ranks))
        for batch in reversed(self._rows[table]):
            kept.append(batch)
            rows += batch.num_rows
            if rows >= most:
                break
        self._rows[table] = kept[::-1]
        return pa.Table.from_batches(self._rows[table], open_schema(table)).unify_dictionaries()


def _named(batch: pa.RecordBatch, table: str, names: pa.Array) -> pa.RecordBatch:
    columns = []
    for stored, column in zip(SCHEMAS[table], batch.columns, strict=True):
        named = name_ids(pa.chunked_array([column]), names) if is_name(stored) else column
        columns.append(named)
    return pa.RecordBatch.from_arrays(columns, schema=open_schema(table))


def _marks_of(samples: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return the readings that mark steps, before all others get their names."""
    ids = [place for place, name in enumerate(names) if name in MARKING_SOURCES]
    return samples.filter(pc.is_in(samples["source"], pa.array(ids, pa.int32())))


@dataclass(frozen=True)
class Latest:
    """The latest rows of a run. `behind` means that there is more to read now."""

    manifest: RunManifest
    ranks: dict[int, RankManifest]
    steps: pa.Table
    spans: pa.Table
    samples: pa.Table
    """The readings that mark steps; empty if they are not followed."""
    events: pa.Table
    """Empty, too, if these are not followed."""
    ranks_in_all: int
    behind: bool

    @property
    def spans_from(self) -> int:
        """The first step whose spans are all kept; of long steps, fewer are than of steps."""
        first = 0
        for rank in self.ranks:  # to group them would load an engine, which takes 50 ms
            mine = self.spans.filter(pc.equal(self.spans["rank"], rank))
            step = pc.min(mine["step"]).as_py()
            if step is not None:
                first = max(first, step + 1)
        return first

    @property
    def newest_ns(self) -> int | None:
        """Time of day at which the last known step ended."""
        ends = []
        for rank, manifest in self.ranks.items():
            mine = self.steps.filter(pc.equal(self.steps["rank"], rank))
            if mine.num_rows:
                to_time_of_day = manifest.anchor.realtime_ns - manifest.anchor.monotonic_ns
                ends.append(pc.max(mine["end_ns"]).as_py() + to_time_of_day)
        return max(ends, default=None)
