"""Collectives of ranks that all made the same calls: one layout, and times by rank.

Ranks of a data-parallel job call the same collectives in the same order. Then what a call is stands
once for all of them, and only its begin and end are kept for each, at a tenth of the size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import codes_of, names_and_codes, smallest
from profkit.frame.estimate import Ints
from profkit.frame.pipelines import MESSAGES

TIMES = ("rank", "ready_ns", "start_ns", "end_ns")
"""The columns that differ between ranks that make the same calls."""


@dataclass(frozen=True)
class RankCalls:
    """When one rank began and ended its calls, and a checksum of what they were."""

    first_ns: int
    """When the first call began."""
    steps: Ints
    """The time from the begin of each call to that of the next, in the smallest type."""
    lengths: Ints
    layout: bytes

    @classmethod
    def of(cls, collectives: pa.Table) -> RankCalls:
        start, end = (collectives[name].to_numpy() for name in TIMES[2:])
        first_ns = 0
        if len(start):
            first_ns = int(start[0])
        layout = _checksum(collectives.drop_columns(list(TIMES)))
        return cls(first_ns, smallest(np.diff(start)), smallest(end - start), layout)

    @property
    def start(self) -> Ints:
        start = np.full(len(self.lengths), self.first_ns, dtype=np.int64)
        np.cumsum(self.steps, dtype=np.int64, out=start[1:])
        start[1:] += self.first_ns
        return start


@dataclass(frozen=True)
class Calls:
    """The calls of all ranks. `layout` has a row for each call, with the times of some rank."""

    layout: pa.Table
    own: Mapping[int, RankCalls]
    kept: npt.NDArray[np.bool_]
    """Which of the ranks' calls these are."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.own)

    def times(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the begins and the ends of each rank's calls."""
        for own in self.own.values():
            start = own.start
            end = start + own.lengths
            yield start[self.kept], end[self.kept]

    @classmethod
    def join(cls, layout: pa.Table, calls: Mapping[int, RankCalls]) -> Calls | None:
        """Return the calls of all ranks; `None` unless each was made by all of them, and once.

        A message, and a bucket that has no end of its own, are looked at row by row.
        """
        first, *others = calls.values()
        if not others or not layout.num_rows or {own.layout for own in others} != {first.layout}:
            return None
        sizes, communicator = layout["group_size"].to_numpy(), codes_of(layout["communicator"])
        keys = np.stack([communicator, layout["sequence"].to_numpy()])
        ops = set(pc.unique(layout["op"].cast(pa.string())).to_pylist())
        if (sizes != len(calls)).any() or not ops.isdisjoint(MESSAGES):
            return None
        if np.unique(keys, axis=1).shape[1] < layout.num_rows:
            return None
        bucket = layout["bucket"].is_valid().to_numpy()
        follows = bucket[1:] & bucket[:-1] & (communicator[1:] == communicator[:-1])
        found = cls(layout, calls, np.ones(layout.num_rows, dtype=bool))
        for _, end in found.times():
            if (follows & (end[1:] == end[:-1])).any():
                return None
        return found

    def of_steps(self, steps: Ints) -> Calls:
        """Return the calls of some steps."""
        wanted = pc.is_in(self.layout["step"], pa.array(steps.tolist(), pa.int64())).to_numpy()
        return self.take(wanted)

    def take(self, kept: npt.NDArray[np.bool_]) -> Calls:
        """Return some of the calls."""
        if kept.all():
            return self
        whole = self.kept.copy()
        whole[whole] = kept
        return Calls(self.layout.filter(pa.array(kept)), self.own, whole)

    def lanes(self) -> Iterator[Ints]:
        """Yield the calls of each communicator in their order."""
        communicator, sequence = codes_of(self.layout["communicator"]), self.layout["sequence"]
        order = np.lexsort((sequence.to_numpy(), communicator))
        yield from np.split(order, np.flatnonzero(np.diff(communicator[order])) + 1)


def _checksum(rows: pa.Table) -> bytes:
    """Return a checksum of all values; ranks number their names differently."""
    found = hashlib.blake2b(str(rows.num_rows).encode(), digest_size=16)
    for field in rows.schema:
        column = rows[field.name]
        found.update(b"%d" % column.null_count)
        if column.null_count == len(column):
            continue
        if pa.types.is_dictionary(column.type):
            names, codes = names_and_codes(column)
            is_used = np.bincount(codes + 1, minlength=len(names) + 1)[1:] > 0
            found.update(repr([names[code] for code in np.flatnonzero(is_used)]).encode())
            number = np.append(np.cumsum(is_used) - 1, -1)  # a null's code is -1
            values = number[codes]
        else:
            if column.null_count:
                found.update(column.is_valid().to_numpy().tobytes())
                column = column.fill_null(0)
            values = column.to_numpy(zero_copy_only=False)
        if (values == values[0]).all():
            values = values[:1]
        found.update(b"%d" % len(values))
        found.update(np.ascontiguousarray(values).tobytes())
    return found.digest()
