"""Write the files of one rank: a stream per table, the names in them, and the end record."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from profkit.clock import Clock, wall_ns
from profkit.schema import name_columns
from profkit.trace.arrays import build_batch
from profkit.trace.jsonfile import replace_json
from profkit.trace.stream import StreamCount, StreamWriter
from profkit.vocab import END_FILE, SCHEMA_VERSION, STREAM_SUFFIX

MANY_ROWS = 256
"""From this number of rows on, converting one column takes long enough to let other threads run."""

RESERVE_BYTES = 65_536
"""Room kept free on the disk, so that the end record can be written when it is full."""


class RankFiles:
    """Writes one rank's tables into `folder`, which must not exist yet.

    After the first failed write nothing more is written: rows are counted as dropped, and `failure`
    gives the reason. Only the constructor raises if the disk is full or gone. `give_way` is called
    between the columns of many rows, so that the job never waits longer than for one column.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        give_way: Callable[[], None] = lambda: None,
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
        self._reserve = folder / ".reserve"
        try:
            self._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        except OSError:  # on a full disk, profkit must not take the last bytes
            self._reserve.unlink(missing_ok=True)
            raise

    def write(self, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append rows, given as columns without `rank`.

        Name columns hold text or are dictionaries. Columns of another shape than the table's
        raise an error, and nothing is written.
        """
        count = len(next(iter(columns.values())))
        if not count:
            return
        if self.failure:
            self.dropped[table] += count
            return
        before = self._written(table)
        try:
            batch = self._build(table, columns, count)
            self._write_names()
            self._stream(table).write(batch)
        except OSError as error:
            self.failure = f"{error.strerror or error} while writing {table}"
            self.dropped[table] += count - (self._written(table) - before)
        finally:
            # Forget names of refused rows: a gap in the ids would cost all names after it.
            while len(self._ids) > self._named:
                self._ids.popitem()

    def close(self, reason: str = "complete") -> None:
        """End every stream and write `end.json`, or as much of that as the disk allows."""
        try:
            self._reserve.unlink(missing_ok=True)
            for stream in self._streams.values():
                try:
                    stream.close()
                except OSError as error:
                    problem = f"{error.strerror or error} while ending a stream"
                    self.failure = self.failure or problem
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
        replace_json(self.folder / END_FILE, content)

    def _stream(self, table: str) -> StreamWriter:
        if table not in self._streams:
            self._streams[table] = StreamWriter(self.folder / (table + STREAM_SUFFIX), table)
        return self._streams[table]

    def _written(self, table: str) -> int:
        return self._streams[table].count.rows if table in self._streams else 0

    def _build(
        self,
        table: str,
        columns: Mapping[str, Sequence[Any]],
        count: int,
    ) -> pa.RecordBatch:
        give_way = self._give_way if count >= MANY_ROWS else lambda: None
        ready: dict[str, Sequence[Any]] = {"rank": [self.rank] * count, **columns}
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
            new.append(str.encode(name, "utf-8", "backslashreplace").decode())
        ids = range(self._named, len(self._ids))
        ranks = [self.rank] * len(new)
        batch = build_batch("strings", {"rank": ranks, "id": ids, "value": new})
        self._stream("strings").write(batch)
        self._named = len(self._ids)

    def _intern_all(self, values: Sequence[str | None]) -> Any:
        if isinstance(values, pa.DictionaryArray):
            interned = self._intern_all(values.dictionary.to_pylist())
            return pa.array(interned, pa.int32()).take(values.indices)
        for name in dict.fromkeys(values):
            if name is not None:
                self._ids.setdefault(name, len(self._ids))
        ids = self._ids
        return [None if name is None else ids[name] for name in values]


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
