"""The contract of an exporter, and the window of a run that it writes.

To add a format, add a module here whose `EXPORTER` has the members of `Exporter`. A window holds
whole tables of some steps: a timeline of everything is too large for the viewers, so the user
chooses the steps, and sees the size before a byte is written.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.errors import ProfkitError, UsageError
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.vocab import ROW_TABLES

DEFAULT_STEPS = 20
"""The number of last steps that are exported if the user chooses none: a viewer opens them fast."""

BATCH_ROWS = 65_536
"""Rows are converted to Python objects in batches of this size, to bound the memory in use."""

_LAST_STEP = 2**62
"""The end of a range of steps that the user left open."""


class Exporter(Protocol):
    """One format."""

    name: str
    title: str
    suffix: str
    row_bytes: Mapping[str, int]
    """The approximate size of a row of each table, without its name."""
    name_copies: int
    """How often a row's name is written; 0 if each distinct name is written once."""
    is_folder: bool
    """True if the exporter writes several files.

    An exporter may also define `why_not(window)`, which returns why it has nothing to write, or an
    empty text. It is asked before the size is shown. If `replaces` is true, its file replaces an
    existing one.
    """

    def write(self, window: Window, path: Path) -> None:
        """Write the window to a path that does not exist yet."""


@dataclass(frozen=True)
class Window:
    """The rows of a run between the first and the last chosen step, rank by rank."""

    trace: Trace
    steps: tuple[int, ...]
    tables: Mapping[str, pa.Table]

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each table."""
        return {name: table.num_rows for name, table in self.tables.items()}

    @functools.cached_property
    def shifts(self) -> dict[int, int]:
        """The time to add to each rank's clock to get the time of day.

        It is 0 for all ranks if one of them does not know it.
        """
        shifts = {}
        is_known = True
        for rank in self.trace.ranks:
            anchor = rank.manifest.anchor
            is_known = is_known and anchor.realtime_ns > 0
            shifts[rank.rank] = anchor.realtime_ns - anchor.monotonic_ns
        if is_known:
            return shifts
        return dict.fromkeys(shifts, 0)

    def estimate(self, exporter: Exporter) -> int:
        """Return the approximate size in bytes that the window has in a format."""
        size = 0
        for name, count in self.rows.items():
            size += count * exporter.row_bytes.get(name, 0)
        for name in ("spans", "kernels"):
            if name not in exporter.row_bytes:
                continue
            names = self.tables[name]["name"].combine_chunks()
            lengths = pc.binary_length(names.dictionary)
            if exporter.name_copies:
                lengths = lengths.take(names.indices)
            size += int(pc.sum(lengths).as_py() or 0) * max(1, exporter.name_copies)
        return size


def open_window(trace: Trace, wanted: str) -> Window:
    """Return the rows of the wanted steps.

    `wanted` is `all`, a step such as `40`, a range such as `40:60` without its end, or empty for
    the last few steps.
    """
    steps = trace.steps
    chosen = choose_steps(np.unique(steps["step"].to_numpy()).tolist(), wanted)
    tables = {name: trace.table(name) for name in (*ROW_TABLES, "sums")}
    if wanted != "all" and chosen:
        rows = steps.filter(pc.is_in(steps["step"], value_set=pa.array(chosen, pa.int64())))
        ends = rows.group_by("rank").aggregate([("start_ns", "min"), ("end_ns", "max")])
        for name, table in tables.items():
            tables[name] = _within(table, ends.to_pylist())
    return Window(trace, tuple(chosen), tables)


def choose_steps(numbers: list[int], wanted: str) -> list[int]:
    """Return the steps of a run that `wanted` names."""
    if wanted == "all":
        return numbers
    if not wanted:
        return numbers[-DEFAULT_STEPS:]
    first, colon, last = wanted.partition(":")
    try:
        begin = int(first or 0)
        end = int(last or _LAST_STEP) if colon else begin + 1
    except ValueError:
        raise UsageError(f"--steps {safe_text(wanted)}: not 'all', a step, or FROM:TO") from None
    chosen = []
    for number in numbers:
        if begin <= number < end:
            chosen.append(number)
    if not chosen:
        there = f"there are {numbers[0]} to {numbers[-1]}" if numbers else "there are none"
        raise UsageError(f"--steps {safe_text(wanted)}: no such steps ({there})")
    return chosen


def _within(table: pa.Table, bounds: Iterable[Mapping[str, int]]) -> pa.Table:
    """Return the rows that overlap the time between the bounds of their rank.

    A table without times is kept whole.
    """
    if not {"time_ns", "start_ns"} & set(table.column_names):
        return table
    begin, finish = "start_ns", "end_ns"
    if "time_ns" in table.column_names:
        begin = finish = "time_ns"
    rank, start, end = (table[name].to_numpy() for name in ("rank", begin, finish))
    kept = np.zeros(table.num_rows, dtype=bool)
    for each in bounds:
        is_ranks = rank == each["rank"]
        kept |= is_ranks & (start < each["end_ns_max"]) & (end >= each["start_ns_min"])
    places = np.ascontiguousarray(np.flatnonzero(kept), dtype=np.int64)
    # not pa.array(places), which imports pandas if it is installed, and that takes a second
    return table.take(pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)]))


def new_path(path: Path) -> Path:
    """Return the path if nothing is there; an existing file is never overwritten."""
    if os.path.lexists(path):
        raise UsageError(
            f"{safe_text(str(path))} exists already; name another with -w, or remove it"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfkitError(f"{safe_text(str(path.parent))}: {error.strerror}") from error
    return path
