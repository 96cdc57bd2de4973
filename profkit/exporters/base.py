"""What every exporter is, and the window of a run that it is given.

To add a format, add a module here whose `EXPORTER` has the members of `Exporter`. A window holds
whole tables of some steps: a timeline of everything is too large for the viewers, so the user says
which steps, and is told the size before a byte is written.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.errors import ProfkitError, UsageError
from profkit.text import safe_text
from profkit.trace import Trace

TABLES = ("steps", "spans", "kernels", "collectives", "samples")
DEFAULT_STEPS = 20


class Exporter(Protocol):
    """One format; `is_folder` says that several files come out.

    `row_bytes` is about what a row of a table takes without its name, and `name_copies` how often a
    row's name is written out, 0 where each distinct name is written once.
    """

    name: str
    title: str
    suffix: str
    row_bytes: Mapping[str, int]
    name_copies: int
    is_folder: bool

    def write(self, window: Window, path: Path) -> None:
        """Write the window to a path that does not exist yet."""


@dataclass(frozen=True)
class Window:
    """A run's rows between the first and the last chosen step, rank by rank."""

    trace: Trace
    steps: tuple[int, ...]
    tables: Mapping[str, pa.Table]

    @property
    def rows(self) -> dict[str, int]:
        return {name: table.num_rows for name, table in self.tables.items()}

    @functools.cached_property
    def shifts(self) -> dict[int, int]:
        """What brings each rank's clock to the time of day; nothing where the ranks' anchors do not tell."""
        anchors = {rank.rank: rank.manifest.anchor for rank in self.trace.ranks}
        known = all(anchor.realtime_ns > 0 for anchor in anchors.values())
        return {
            rank: anchor.realtime_ns - anchor.monotonic_ns if known else 0
            for rank, anchor in anchors.items()
        }

    def estimate(self, exporter: Exporter) -> int:
        """About how many bytes it takes in a format."""
        rows = sum(count * exporter.row_bytes.get(name, 0) for name, count in self.rows.items())
        return rows + sum(
            _name_bytes(self.tables[name]["name"], exporter.name_copies)
            for name in ("spans", "kernels")
        )


def _name_bytes(column: pa.ChunkedArray, copies: int) -> int:
    """What a column of names takes, written `copies` times for each row, or once for each distinct name."""
    whole = column.combine_chunks()
    lengths = pc.binary_length(whole.dictionary)
    chosen = lengths.take(whole.indices) if copies else lengths
    return int(pc.sum(chosen).as_py() or 0) * max(1, copies)


def open_window(trace: Trace, wanted: str) -> Window:
    """The rows of the wanted steps: `all`, `40`, `40:60` (60 is not in it), or nothing for the last few."""
    numbers = np.unique(trace.steps["step"].to_numpy())
    chosen = choose_steps(numbers.tolist(), wanted)
    if wanted == "all" or not chosen:
        return Window(trace, tuple(chosen), {name: trace.table(name) for name in TABLES})
    bounds = _bounds(trace.steps, chosen)
    return Window(
        trace, tuple(chosen), {name: _within(trace.table(name), bounds) for name in TABLES}
    )


def choose_steps(numbers: list[int], wanted: str) -> list[int]:
    """The steps of a run that `wanted` names."""
    if wanted == "all":
        return numbers
    if not wanted:
        return numbers[-DEFAULT_STEPS:]
    first, colon, last = wanted.partition(":")
    try:
        begin = int(first) if first else 0
        end = (int(last) if last else 2**62) if colon else begin + 1
    except ValueError:
        raise UsageError(f"--steps {safe_text(wanted)}: not 'all', a step, or FROM:TO") from None
    chosen = [number for number in numbers if begin <= number < end]
    if not chosen:
        there = f"there are {numbers[0]} to {numbers[-1]}" if numbers else "there are none"
        raise UsageError(f"--steps {safe_text(wanted)}: no such steps ({there})")
    return chosen


def _bounds(steps: pa.Table, chosen: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Each rank's first beginning and last end of the chosen steps."""
    mine = steps.filter(pc.is_in(steps["step"], value_set=pa.array(list(chosen), pa.int64())))
    rank, start, end = (mine[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    return {
        int(each): (int(start[rank == each].min()), int(end[rank == each].max()))
        for each in np.unique(rank)
    }


def _within(table: pa.Table, bounds: Mapping[int, tuple[int, int]]) -> pa.Table:
    """The rows that overlap their rank's bounds."""
    begin, finish = (
        ("time_ns", "time_ns") if "time_ns" in table.column_names else ("start_ns", "end_ns")
    )
    rank, start, end = (table[name].to_numpy() for name in ("rank", begin, finish))
    kept = np.zeros(table.num_rows, dtype=bool)
    for each, (first, last) in bounds.items():
        kept |= (rank == each) & (start < last) & (end >= first)
    return table.take(_places(np.flatnonzero(kept)))


def _places(values: Any) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, dtype=np.int64))]
    )


def new_path(path: Path) -> Path:
    """`path`, if nothing is there; what is there is never written over."""
    if os.path.lexists(path):
        raise UsageError(
            f"{safe_text(str(path))} exists already; name another with -w, or remove it"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfkitError(f"{safe_text(str(path.parent))}: {error.strerror}") from error
    return path
