"""The rows of a long run that are not thinned yet: in files of their own, and in memory.

A rank's run is divided into parts of about a minute. The rows of the current part are written in
full to files of the part. When it ends, its sums are written to `sums`, which commits the part:
from then on readers ignore its files. So a rank that is killed leaves all rows of its last part,
and `sums` of all parts before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from profkit.trace.stream import StreamCount, StreamWriter
from profkit.vocab import RECENT, STREAM_SUFFIX, THINNED_TABLES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PART_NS = 60_000_000_000
"""The length of a part: batches of a minute take far less room than those of half a second."""

DAY_NS = 86_400_000_000_000

MOST_PENDING = 20_000
"""Rows of a part that wait in memory to be summed. Of more, the job might notice the summing."""


class Fate(NamedTuple):
    """The rows of a table that are kept in full, or carried over; the others are dropped."""

    kept: npt.NDArray[np.bool_]
    carried: npt.NDArray[np.bool_]


class Thinner(Protocol):
    """Sums the steps of a part, and decides which rows are kept."""

    def take(self, tables: Mapping[str, pa.Table]) -> Mapping[str, Fate]:
        """Add rows of the part to its sums. Steps that may lack rows are carried over."""

    def end_part(self, part: int) -> Mapping[str, Sequence[Any]]:
        """Return the columns of `sums` of the part; an empty mapping if no step was summed."""


NewThinner: TypeAlias = Callable[[pa.Table, pa.Table], Thinner]
"""Makes a thinner, given the last steps that were written in full, and the spans since then."""


class Recent:
    """The files of the current part, and the rows in them that are not summed yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / RECENT
        self._folder.mkdir(mode=0o700)
        self.part = 0
        self.pending: dict[str, list[pa.RecordBatch]] = {}
        self.kept: dict[str, list[pa.RecordBatch]] = {}
        """Rows of the part that go to the rank's tables when it ends."""
        self._streams: dict[str, StreamWriter] = {}
        self._carried: dict[str, int] = {}

    @property
    def counts(self) -> dict[str, StreamCount]:
        return {table: stream.count for table, stream in self._streams.items()}

    @property
    def new_rows(self) -> int:
        """Number of rows that wait to be summed, without those that were held back once."""
        total = -sum(self._carried.values())
        for batches in self.pending.values():
            total += sum(batch.num_rows for batch in batches)
        return total

    def stream(self, table: str) -> StreamWriter:
        if table not in self._streams:
            path = self._folder / recent_file(self.part, table)
            self._streams[table] = StreamWriter(path, table)
        return self._streams[table]

    def settle(self, table: str, rows: pa.Table, fate: Fate) -> None:
        """Sort pending rows into kept and carried ones, and forget the others."""
        kept = rows.filter(pa.array(fate.kept)).combine_chunks().to_batches()
        carried = rows.filter(pa.array(fate.carried)).combine_chunks().to_batches()
        self.kept.setdefault(table, []).extend(kept)
        self.pending[table] = carried
        self._carried[table] = sum(batch.num_rows for batch in carried)

    def begin_next(self) -> dict[str, list[pa.RecordBatch]]:
        """Begin the files of the next part with the carried rows; return the kept rows.

        Files of the part before stay until the next one ends, for readers that follow the run.
        """
        self.close()
        self._streams.clear()
        self.part += 1
        for table, batches in self.pending.items():
            for batch in batches:
                self.stream(table).write(batch)
        kept, self.kept = self.kept, {}
        return kept

    def remove_before(self, part: int) -> None:
        """Remove the files of parts that were committed."""
        for table in THINNED_TABLES:
            with contextlib.suppress(OSError):
                (self._folder / recent_file(part - 1, table)).unlink()

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


def recent_file(part: int, table: str) -> str:
    return f"{part:08d}-{table}{STREAM_SUFFIX}"
