"""Reads the stacks of loader workers, which each process stores in a file of lines."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from profkit.plain_file import read_plain
from profkit.schema import open_schema
from profkit.text import plural, safe_text
from profkit.vocab import LINES_SUFFIX, LOADER_WORKER, WORKER_STACKS

LARGEST_BYTES = 256_000_000
"""Larger files are not read: a day of samples has a tenth of that."""

LARGEST_ID = 2**31 - 1
LARGEST_NS = 2**62

_SAMPLE: tuple[Any, ...] = (int, int, int, int | None)
_FRAME: tuple[Any, ...] = (int, int | None, str, str, int, str)
_PAIR: tuple[Any, ...] = (int, int)


@dataclass(frozen=True)
class WorkerFile:
    """One worker's file: how much of it can be read."""

    name: str
    samples: int = 0
    broken: int = 0
    """Lines that cannot be read, among them the last one if it is cut."""
    is_cut: bool = False
    """True if the file ends within a write: its worker was killed there, or the file was cut."""
    problem: str = ""
    """The damage other than a cut end; empty if there is none."""


@dataclass
class WorkerStacks:
    """The samples of a rank's workers, as tables like `stacks` and `frames`.

    `costs` are, for each rank, how long its workers were sampled in all, and the processor time
    that this took, in ns.
    """

    stacks: pa.Table
    frames: pa.Table
    costs: Mapping[int, tuple[int, int]]
    files: tuple[WorkerFile, ...] = ()

    @property
    def broken(self) -> int:
        """Lines that cannot be read; the end of a killed worker's file may be one."""
        return sum(file.broken for file in self.files)

    @property
    def elapsed_ns(self) -> int:
        return sum(elapsed for elapsed, _ in self.costs.values())

    @property
    def used_ns(self) -> int:
        return sum(used for _, used in self.costs.values())

    def of_rank(self, rank: int) -> WorkerStacks:
        """Return the samples of one rank; `files` stay those of all ranks."""
        stacks = self.stacks.filter(pc.equal(self.stacks["rank"], rank))
        frames = self.frames.filter(pc.equal(self.frames["rank"], rank))
        return WorkerStacks(stacks, frames, {rank: self.costs.get(rank, (0, 0))}, self.files)


@dataclass
class _State:
    """State of reading one file."""

    thread: str = f"{LOADER_WORKER}?"
    cost: tuple[int, int] = (0, 0)
    broken: int = 0
    checksum: int = 0
    """The checksum of the lines since the last one that states theirs."""
    changed: int = 0
    is_checked: bool = False
    ends_checked: bool = False


@dataclass
class _Rows:
    """Rows of one rank; the ids of each process's frames are moved behind those before."""

    samples: list[tuple[Any, ...]] = field(default_factory=list)
    frames: list[tuple[Any, ...]] = field(default_factory=list)
    elapsed_ns: int = 0
    used_ns: int = 0
    files: list[WorkerFile] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Append the rows of one process, and what is wrong with its file."""
        name, before = safe_text(path.name), len(self.samples)
        try:
            lines = read_plain(path, LARGEST_BYTES).split(b"\n")
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
            self.files.append(WorkerFile(name, broken=1, problem=problem))
            return
        *whole, rest = lines
        first, state = len(self.frames), _State()
        for line in whole:
            self._read_line(line, first, state)
        problems = []
        if state.broken:
            problems.append(f"{plural(state.broken, 'line')} cannot be read")
        if state.changed:
            problems.append(f"{plural(state.changed, 'write')} changed since, by the checksums")
        if rest:
            self._read_line(rest, first, state)
        self.elapsed_ns += state.cost[0]
        self.used_ns += state.cost[1]
        is_cut = bool(rest) or (state.is_checked and not state.ends_checked)
        count = len(self.samples) - before
        self.files.append(WorkerFile(name, count, state.broken, is_cut, "; ".join(problems)))

    def _read_line(self, line: bytes, first: int, state: _State) -> None:
        kind, row = _parse(line)
        known = len(self.frames) - first
        if kind == "check" and _fits(row, (int,)):
            state.changed += row[0] != state.checksum
            state.checksum, state.is_checked, state.ends_checked = 0, True, True
            return
        state.checksum, state.ends_checked = zlib.crc32(line + b"\n", state.checksum), False
        if kind == "worker" and _fits(row, _PAIR):
            state.thread = f"{LOADER_WORKER}{row[0]}"
        elif kind == "cost" and _fits(row, _PAIR):
            state.cost = row[0], row[1]
        elif kind == "frame" and _fits(row, _FRAME) and self._is_next(row, first):
            number, parent, file, function, place, origin = row
            above = None if parent is None else first + min(parent, number)
            names = safe_text(file), safe_text(function), place, safe_text(origin)
            self.frames.append((first + number, above, *names))
        elif kind == "sample" and _fits(row, _SAMPLE) and (row[-1] is None or row[-1] < known):
            *times, stack = row
            place = None if stack is None else first + stack
            self.samples.append((*times, state.thread, place))
        else:
            state.broken += 1

    def _is_next(self, frame: Sequence[Any], first: int) -> bool:
        """Return true for the frame whose id follows, if its line has a place in the column."""
        number, line = int(frame[0]), int(frame[4])
        return number == len(self.frames) - first and max(line, len(self.frames)) <= LARGEST_ID


def _parse(line: bytes) -> tuple[Any, tuple[Any, ...]]:
    try:
        kind, *row = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None, ()
    return kind, tuple(row)


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
    try:
        paths = sorted((folder / WORKER_STACKS).iterdir())
    except FileNotFoundError:
        paths = []
    except OSError as error:
        paths = []
        problem = f"cannot be listed ({error.strerror or error})"
        rows.files.append(WorkerFile("", broken=1, problem=problem))
    for path in paths:
        if path.name.endswith(LINES_SUFFIX):
            rows.read(path)
    stacks, frames = _table("stacks", rank, rows.samples), _table("frames", rank, rows.frames)
    costs = {rank: (rows.elapsed_ns, rows.used_ns)}
    return WorkerStacks(stacks, frames, costs, tuple(rows.files))


def join_worker_stacks(ranks: Sequence[tuple[Path, int]]) -> WorkerStacks:
    """Return what the workers of all ranks have stored."""
    parts = [read_worker_stacks(folder, rank) for folder, rank in ranks]
    parts = parts or [WorkerStacks(_table("stacks", 0, ()), _table("frames", 0, ()), {})]
    costs: dict[int, tuple[int, int]] = {}
    for part in parts:
        costs.update(part.costs)
    stacks = pa.concat_tables([part.stacks for part in parts]).unify_dictionaries()
    frames = pa.concat_tables([part.frames for part in parts]).unify_dictionaries()
    files = itertools.chain.from_iterable(part.files for part in parts)
    return WorkerStacks(stacks, frames, costs, tuple(files))


def _table(name: str, rank: int, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    schema = open_schema(name)
    columns = []
    for place, column in enumerate(schema):
        if rows and place > len(rows[0]):  # what is only known of the training thread
            columns.append(pa.nulls(len(rows), column.type))
            continue
        values = [rank] * len(rows) if not place else [row[place - 1] for row in rows]
        if pa.types.is_dictionary(column.type):
            columns.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            columns.append(pa.array(values, column.type))
    return pa.Table.from_arrays(columns, schema=schema)
