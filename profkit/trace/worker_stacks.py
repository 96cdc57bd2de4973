"""Reads the stacks of loader workers, which each process stores in a file of lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from profkit.schema import open_schema
from profkit.text import safe_text
from profkit.vocab import LINES_SUFFIX, LOADER_WORKER, WORKER_STACKS

LARGEST_BYTES = 256_000_000
"""Larger files are not read: a day of samples has a tenth of that."""

LARGEST_ID = 2**31 - 1
LARGEST_NS = 2**62

_SAMPLE: tuple[Any, ...] = (int, int, int, int | None)
_FRAME: tuple[Any, ...] = (int, int | None, str, str, int, str)
_PAIR: tuple[Any, ...] = (int, int)


@dataclass
class WorkerStacks:
    """The samples of a rank's workers, as tables like `stacks` and `frames`.

    `costs` are, for each rank, how long its workers were sampled in all, and the processor time
    that this took, in ns. `broken` lines could not be read; the end of a killed worker's file may
    be one.
    """

    stacks: pa.Table
    frames: pa.Table
    costs: Mapping[int, tuple[int, int]]
    broken: int = 0

    @property
    def elapsed_ns(self) -> int:
        return sum(elapsed for elapsed, _ in self.costs.values())

    @property
    def used_ns(self) -> int:
        return sum(used for _, used in self.costs.values())

    def of_rank(self, rank: int) -> WorkerStacks:
        """Return the samples of one rank; `broken` stays that of all ranks."""
        stacks = self.stacks.filter(pc.equal(self.stacks["rank"], rank))
        frames = self.frames.filter(pc.equal(self.frames["rank"], rank))
        return WorkerStacks(stacks, frames, {rank: self.costs.get(rank, (0, 0))}, self.broken)


@dataclass
class _Rows:
    """Rows of one rank; the ids of each process's frames are moved behind those before."""

    samples: list[tuple[Any, ...]] = field(default_factory=list)
    frames: list[tuple[Any, ...]] = field(default_factory=list)
    elapsed_ns: int = 0
    used_ns: int = 0
    broken: int = 0

    def read(self, path: Path) -> None:
        """Append the rows of one process."""
        first = len(self.frames)
        thread = f"{LOADER_WORKER}?"
        elapsed_ns = used_ns = 0
        for kind, row in self._lines(path):
            known = len(self.frames) - first
            if kind == "worker" and _fits(row, _PAIR):
                thread = f"{LOADER_WORKER}{row[0]}"
            elif kind == "cost" and _fits(row, _PAIR):
                elapsed_ns, used_ns = row
            elif kind == "frame" and _fits(row, _FRAME) and self._is_next(row, first):
                number, parent, file, function, line, origin = row
                above = None if parent is None else first + min(parent, number)
                names = safe_text(file), safe_text(function), line, safe_text(origin)
                self.frames.append((first + number, above, *names))
            elif kind == "sample" and _fits(row, _SAMPLE) and (row[-1] is None or row[-1] < known):
                *times, stack = row
                self.samples.append((*times, thread, None if stack is None else first + stack))
            else:
                self.broken += 1
        self.elapsed_ns += elapsed_ns
        self.used_ns += used_ns

    def _is_next(self, frame: Sequence[Any], first: int) -> bool:
        """Return true for the frame whose id follows, if its line has a place in the column."""
        number, line = int(frame[0]), int(frame[4])
        return number == len(self.frames) - first and max(line, len(self.frames)) <= LARGEST_ID

    def _lines(self, path: Path) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        try:
            if path.stat().st_size > LARGEST_BYTES:
                self.broken += 1
                return
            lines = path.read_bytes().splitlines()
        except OSError:
            self.broken += 1
            return
        for line in lines:
            try:
                kind, *row = json.loads(line)
            except (ValueError, TypeError, RecursionError):
                self.broken += 1
            else:
                yield kind, tuple(row)


def _fits(row: Sequence[Any], kinds: Sequence[Any]) -> bool:
    """Return true if the values are of these kinds and in the columns' range."""
    if len(row) != len(kinds):
        return False
    for value, kind in zip(row, kinds, strict=True):
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        if isinstance(value, int) and not 0 <= value <= LARGEST_NS:
            return False
    return True


def read_worker_stacks(folder: Path, rank: int) -> WorkerStacks:
    """Return what the workers of the rank in this folder have stored; empty tables if nothing."""
    rows = _Rows()
    for path in sorted((folder / WORKER_STACKS).glob("*" + LINES_SUFFIX)):
        rows.read(path)
    stacks, frames = _table("stacks", rank, rows.samples), _table("frames", rank, rows.frames)
    return WorkerStacks(stacks, frames, {rank: (rows.elapsed_ns, rows.used_ns)}, rows.broken)


def join_worker_stacks(ranks: Sequence[tuple[Path, int]]) -> WorkerStacks:
    """Return what the workers of all ranks have stored."""
    parts = [read_worker_stacks(folder, rank) for folder, rank in ranks]
    parts = parts or [WorkerStacks(_table("stacks", 0, ()), _table("frames", 0, ()), {})]
    costs: dict[int, tuple[int, int]] = {}
    for part in parts:
        costs.update(part.costs)
    stacks = pa.concat_tables([part.stacks for part in parts]).unify_dictionaries()
    frames = pa.concat_tables([part.frames for part in parts]).unify_dictionaries()
    return WorkerStacks(stacks, frames, costs, sum(part.broken for part in parts))


def _table(name: str, rank: int, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    schema = open_schema(name)
    columns = []
    for place, column in enumerate(schema):
        values = [rank] * len(rows) if not place else [row[place - 1] for row in rows]
        if pa.types.is_dictionary(column.type):
            columns.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            columns.append(pa.array(values, column.type))
    return pa.Table.from_arrays(columns, schema=schema)
