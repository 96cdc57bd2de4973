"""Write the files of one rank: a stream per table, the names in them, and the end record."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from profkit.clock import Clock, now_ns, wall_ns
from profkit.schema import SCHEMAS, name_columns, open_schema
from profkit.trace.arrays import build_batch, repeat_number
from profkit.trace.jsonfile import replace_json
from profkit.trace.manifest import RankManifest
from profkit.trace.recent import (
    DAY_NS,
    MOST_PENDING,
    PART_NS,
    NewThinner,
    Recent,
    Thinner,
)
from profkit.trace.stream import StreamCount, StreamWriter
from profkit.trace.unpacking import LONGEST_NAME
from profkit.vocab import (
    END_FILE,
    FULL_BYTES,
    RECENT,
    SCHEMA_VERSION,
    STREAM_SUFFIX,
    THINNED_TABLES,
)

log = logging.getLogger("profkit")

MANY_ROWS = 256
"""From this number of rows on, converting one column takes long enough to let other threads run."""

LIMITED_TABLES = ("kernels", "stacks")
LIMITED_BYTES_A_DAY = 6_000_000
"""A long run drops further rows of these tables, and counts them as dropped."""

RESERVE_BYTES = 65_536
"""Room kept free on the disk, so that the end record can be written when it is full."""


class RankFiles:
    """Writes one rank's tables into `folder`, which must not exist yet.

    After the first failed write nothing more is written: rows are counted as dropped, and `failure`
    gives the reason. Only the constructor raises if the disk is full or gone. `give_way` is called
    between the columns of many rows, so that the job never waits longer than for one column.

    From `full_bytes` on, rows are thinned with `thinner`, if there is one; see `Recent`.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        give_way: Callable[[], None] = lambda: None,
        thinner: NewThinner | None = None,
        full_bytes: int = FULL_BYTES,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True)
        self.folder = folder
        self.rank = rank
        self.failure = ""
        self.dropped: Counter[str] = Counter()
        self._streams: dict[str, StreamWriter] = {}
        self._ids: dict[str, int] = {}
        self._named = 0
        self._give_way = give_way
        self._make_thinner, self._full_bytes = thinner, full_bytes
        self._thinner: Thinner | None = None
        self._latest: dict[str, list[pa.RecordBatch]] = {"steps": [], "spans": []}
        """The last batch of steps, and the spans that were written after it."""
        self._recent: Recent | None = None
        self._part_ends_ns = 0
        self._reserve = folder / ".reserve"
        try:
            self._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        except OSError:  # on a full disk, profkit must not take the last bytes
            self._reserve.unlink(missing_ok=True)
            raise

    def write_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows without `rank`, which may miss trailing columns that are nullable."""
        names, columns = SCHEMAS[table].names[1:], transpose(rows)
        self.write(table, dict(zip(names[: len(columns)], columns, strict=True)))

    def describe(self, manifest: RankManifest) -> None:
        manifest.write(self.folder)

    def progress(self) -> float:
        return 0.0

    def write(self, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append rows, given as columns without `rank`.

        Name columns hold text or are dictionaries. Columns of another shape than the table's
        raise an error, and nothing is written.
        """
        count = len(next(iter(columns.values())))
        if not count:
            return
        if self.failure or self._is_over(table):
            self.dropped[table] += count
            return
        before = self._written(table)
        try:
            batch = self._build(table, columns, count)
            self._write_names()
            self._stream(table).write(batch)
            if self._recent is None:
                self._note_latest(table, batch)
            elif self._make_thinner and table in THINNED_TABLES:
                self._recent.pending.setdefault(table, []).append(batch)
        except OSError as error:
            self.failure = f"{error.strerror or error} while writing {table}"
            self.dropped[table] += count - (self._written(table) - before)
        finally:
            # Forget names of refused rows: a gap in the ids would cost all names after it.
            while len(self._ids) > self._named:
                self._ids.popitem()

    def thin(self, clock: Clock = now_ns) -> None:
        """Thin rows that are due: those of a part that has ended, or more than memory may hold."""
        if self._make_thinner is None or self.failure:
            return
        try:
            if self._thinner is None or self._recent is None:
                self._begin_thinning(self._make_thinner, clock())
                return
            is_due = clock() >= self._part_ends_ns
            if is_due or self._recent.new_rows >= MOST_PENDING:
                self._take_pending(self._thinner, self._recent)
            if is_due:
                self._part_ends_ns = clock() + PART_NS
                self._end_part(self._thinner, self._recent)
        except OSError as error:
            self.failure = f"{error.strerror or error} while thinning"
        except Exception as error:  # noqa: BLE001  # a lost part must not end the thread
            self._make_thinner = None
            if self._recent is not None:
                self._recent.pending.clear()
            log.warning("profkit: rows are no longer thinned: %s", error)

    def _begin_thinning(self, make: NewThinner, now: int) -> None:
        """Begin with the first part if the tables have become too large."""
        if sum(stream.count.bytes for stream in self._streams.values()) < self._full_bytes:
            return
        latest = [self._with_names(table, rows) for table, rows in self._latest.items()]
        self._thinner, self._recent = make(*latest), Recent(self.folder)
        self._latest.clear()
        self._part_ends_ns = now + PART_NS

    def _is_over(self, table: str) -> bool:
        """Return true if a long run has used the room for what cannot be thinned."""
        if self._recent is None or table not in LIMITED_TABLES or table not in self._streams:
            return False
        days = (self._recent.part + 1) * PART_NS / DAY_NS
        return self._streams[table].count.bytes > LIMITED_BYTES_A_DAY * (1 + days)

    def _take_pending(self, thinner: Thinner, recent: Recent) -> None:
        stored, named = {}, {}
        for table in THINNED_TABLES:
            batches = recent.pending.get(table, [])
            stored[table] = pa.Table.from_batches(batches, SCHEMAS[table])
            named[table] = self._with_names(table, batches)
        for table, fate in thinner.take(named).items():
            recent.settle(table, stored[table], fate)
            self._give_way()

    def _note_latest(self, table: str, batch: pa.RecordBatch) -> None:
        """Note what a thinner must know of the rows before its first."""
        if table == "steps":
            self._latest = {"steps": [batch], "spans": []}
        elif table == "spans" and self._make_thinner is not None:
            self._latest["spans"].append(batch)

    def _with_names(self, table: str, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        from profkit.trace.rank import with_names  # imports what only long runs need

        names = pa.array([*self._ids, ""], pa.string())
        return with_names(batches, names, open_schema(table))

    def _end_part(self, thinner: Thinner, recent: Recent) -> None:
        """Commit a part: write its sums, then the rows of it that are kept."""
        sums = thinner.end_part(recent.part)
        if not sums:
            return
        kept = recent.begin_next()
        self.write("sums", sums)
        for table, batches in kept.items():
            rows = pa.Table.from_batches(batches, SCHEMAS[table])
            for batch in rows.combine_chunks().to_batches():
                self._main_stream(table).write(batch)
        recent.remove_before(recent.part - 1)

    def close(self, reason: str = "complete") -> None:
        """End every stream and write `end.json`, or as much of that as the disk allows.

        Without a reason there is no end record, because the rank did not come to its end.
        """
        try:
            self._reserve.unlink(missing_ok=True)
            streams: list[StreamWriter | Recent] = [*self._streams.values()]
            if self._recent is not None:
                self._recent.remove_before(self._recent.part)
                streams.append(self._recent)
            for stream in streams:
                try:
                    stream.close()
                except OSError as error:
                    problem = f"{error.strerror or error} while ending a stream"
                    self.failure = self.failure or problem
            if reason:
                self._write_end(self.failure or reason)
        except OSError as error:
            self.failure = self.failure or f"{error.strerror or error} while ending the trace"

    def _write_end(self, reason: str, realtime: Clock = wall_ns) -> None:
        counts = {table: stream.count for table, stream in self._streams.items()}
        for table in self.dropped.keys() - counts.keys():
            counts[table] = StreamCount()
        tables = {}
        for table, count in counts.items():
            tables[table] = {**dataclasses.asdict(count), "dropped": self.dropped[table]}
        content = {
            "schema_version": list(SCHEMA_VERSION),
            "rank": self.rank,
            "reason": reason,
            "ended_ns": realtime(),
            "tables": tables,
        }
        if self._recent is not None:
            recent = {
                table: dataclasses.asdict(count) for table, count in self._recent.counts.items()
            }
            content[RECENT] = recent
        replace_json(self.folder / END_FILE, content)

    def _stream(self, table: str) -> StreamWriter:
        """Return the stream for new rows of a table."""
        if self._recent is not None and table in THINNED_TABLES:
            return self._recent.stream(table)
        return self._main_stream(table)

    def _main_stream(self, table: str) -> StreamWriter:
        if table not in self._streams:
            self._streams[table] = StreamWriter(self.folder / (table + STREAM_SUFFIX), table)
        return self._streams[table]

    def _written(self, table: str) -> int:
        counts = {name: stream.count for name, stream in self._streams.items()}
        if self._recent is not None and table in THINNED_TABLES:
            counts = self._recent.counts
        return counts[table].rows if table in counts else 0

    def _build(
        self, table: str, columns: Mapping[str, Sequence[Any]], count: int
    ) -> pa.RecordBatch:
        give_way = self._give_way if count >= MANY_ROWS else lambda: None
        ready: dict[str, Any] = {"rank": repeat_number(self.rank, count), **columns}
        for column in name_columns(table):
            if column in columns:
                ready[column] = self._intern_all(columns[column])
                give_way()
        return build_batch(table, ready, give_way=give_way)

    def _write_names(self) -> None:
        """Write new names before the rows with them: a killed writer leaves no unknown id."""
        if len(self._ids) == self._named:
            return
        new = []
        for name in list(self._ids)[self._named :]:
            # Escape what no file can hold: half of a surrogate pair, from a path in other bytes.
            new.append(str.encode(name[:LONGEST_NAME], "utf-8", "backslashreplace").decode())
        ids = range(self._named, len(self._ids))
        ranks = [self.rank] * len(new)
        batch = build_batch("strings", {"rank": ranks, "id": ids, "value": new})
        self._stream("strings").write(batch)
        self._named = len(self._ids)

    def _intern_all(self, values: Sequence[Any]) -> Any:
        if isinstance(values, pa.DictionaryArray):
            interned = self._intern_all(values.dictionary.to_pylist())
            return pa.array(interned, pa.int32()).take(values.indices)
        ids = self._ids
        with contextlib.suppress(KeyError):  # usually, there are no new names and no nulls
            return list(map(ids.__getitem__, values))
        for name in dict.fromkeys(values):
            if name is not None:
                ids.setdefault(name, len(ids))
        return [None if name is None else ids[name] for name in values]


def transpose(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return the columns of rows, which may miss trailing nulls."""
    width = len(rows[0])
    if set(map(len, rows)) != {width}:
        return list(itertools.zip_longest(*rows))
    values = list(itertools.chain.from_iterable(rows))  # `zip_longest` takes longer
    return [values[place::width] for place in range(width)]


def check_columns(columns: Mapping[str, Sequence[str]]) -> None:
    """Raise `ValueError` unless each table's rows fit its schema.

    The columns must be the schema's, in order and without the rank. Only trailing columns that are
    nullable may be missing.
    """
    for table, given in columns.items():
        schema = SCHEMAS[table]
        expected = schema.names[1:]
        if list(given) != expected[: len(given)]:
            raise ValueError(
                f"rows of {table} have the columns {', '.join(given)}, "
                f"but the schema has {', '.join(expected)}"
            )
        for name in expected[len(given) :]:
            if not schema.field(name).nullable:
                raise ValueError(f"rows of {table} lack the column {name}, which is not nullable")


def new_run_folder(parent: Path, name: str) -> Path:
    """Make a new, private folder for a run. If the name is taken, a number is added."""
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 10_000):
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(os.fspath(parent / name))
