"""Numbers the collectives of several ranks' files alike, or leaves them unmatched.

A file's collectives can be counted from its beginning, but captures need not begin with the same
one. Newer files have torch's own numbers. For others, the operations, the sizes, the marked steps
and the times of the collectives show how far the captures are shifted. If these fit no shift, or
several equally well, nobody knows which collectives are the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from profkit.clock import Anchor
from profkit.importers.reading.numbers import Ints
from profkit.text import plural

EQUAL_SIZED: Final = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
)
"""Operations whose message has the same size on all ranks; an all-to-all may be uneven."""
ONE_SIDED: Final = frozenset({"send", "recv"})
"""Only two ranks take part, whatever the size of their communicator."""
MOST_SHIFT: Final = 512
"""Captures that are further apart are not compared: each shift takes time."""
MIN_SHARED: Final = 0.5
"""A smaller part of the shorter capture may fit by chance."""
MIN_SAME_STEP: Final = 0.9
"""A launch at the boundary of a step may fall into the next one on another rank."""
MOST_ENDS: Final = 1_000
"""So many pairs show how far apart the ends are."""
CLEARLY: Final = 4
"""The ends must be so many times further apart at every other shift."""


@dataclass(frozen=True, eq=False)
class Side:
    """A communicator as one rank shows it: its collectives in their order."""

    rank: int
    rows: Ints
    messages: Ints
    """A number for the operation and the size of each."""
    step: Ints
    """The marked step of each, -1 if it is in none; empty if the file marks no steps."""
    end: Ints
    """When each ended, by the time of day; empty if the file does not say it."""
    sequence: Ints

    @property
    def is_numbered(self) -> bool:
        """Whether torch numbered these: its numbers begin at one, and ours at zero."""
        return bool(self.sequence[0])


class Aligner:
    """Renumbers each rank's collectives as those of the first rank with the communicator."""

    def __init__(self) -> None:
        self._sides: dict[str, Side] = {}
        self._messages: dict[tuple[str, int], int] = {}
        self._left: Counter[str] = Counter()
        self._one_sided = 0

    def align(
        self, rank: int, columns: Mapping[str, Any], anchor: Anchor, *, steps_marked: bool
    ) -> None:
        """Change the columns of one rank's collectives."""
        for name, mine in _rows_by_name(columns["communicator"]).items():
            rows = mine[np.argsort(columns["start_ns"][mine], kind="stable")]
            rows = self._without_one_sided(rank, columns, rows)
            if not len(rows):
                continue
            side = self._side(rank, columns, rows, anchor, steps_marked=steps_marked)
            first = self._sides.setdefault(name, side)
            shift = 0 if first is side else find_shift(first, side)
            if shift is None:
                self._left[name] += 1
                _rename(columns, rows, rank)
            elif not side.is_numbered or not first.is_numbered:
                number = np.arange(len(rows)) + shift
                inside = np.clip(number, 0, len(first.rows) - 1)
                columns["sequence"][rows] = first.sequence[inside] + number - inside

    def _without_one_sided(self, rank: int, columns: Mapping[str, Any], rows: Ints) -> Ints:
        """Give sends and receives among several ranks names of their own: no number joins them."""
        ops, sizes = columns["op"], columns["group_size"]
        mine = np.array([ops[row] in ONE_SIDED for row in rows.tolist()], dtype=bool)
        mine &= sizes[rows] > 2
        if not mine.any():
            return rows
        _rename(columns, rows[mine], rank)
        self._one_sided += int(mine.sum())
        others = np.asarray(rows[~mine])
        columns["sequence"][others] = np.arange(len(others))
        return others

    def _side(
        self,
        rank: int,
        columns: Mapping[str, Any],
        rows: Ints,
        anchor: Anchor,
        *,
        steps_marked: bool,
    ) -> Side:
        messages = np.zeros(len(rows), dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            op = columns["op"][row]
            size = int(columns["bytes"][row]) if op in EQUAL_SIZED else -1
            key = ("message" if op in ONE_SIDED else op, size)
            messages[place] = self._messages.setdefault(key, len(self._messages))
        step = end = messages[:0]
        if steps_marked:
            step = pc.fill_null(columns["step"], -1).to_numpy(zero_copy_only=False)[rows]
        if anchor.realtime_ns:
            end = columns["end_ns"][rows] - anchor.monotonic_ns + anchor.realtime_ns
        return Side(rank, rows, messages, step, end, columns["sequence"][rows].copy())

    def flags(self) -> Iterator[str]:
        """Yield what could not be matched."""
        if self._left:
            yield (
                f"{plural(len(self._left), 'communicator')} could not be matched over the ranks: "
                "their files begin with different collectives, and operations, sizes, steps and "
                "times fit no shift or several; who waits there is not known; capture the same "
                "steps on all ranks, with a schedule of the profiler"
            )
        if self._one_sided:
            yield (
                f"{plural(self._one_sided, 'message')} in groups of more than two ranks could not "
                "be matched: the files do not say which send belongs to which receive; who waits "
                "there is not known"
            )


def use_stated_numbers(columns: Mapping[str, Any], stated: Ints) -> None:
    """Number the collectives of a communicator as torch does, if it numbers each of them.

    It counts messages on their own, and gives one number to collectives that it joins.
    """
    for rows in _rows_by_name(columns["communicator"]).values():
        numbers = np.unique(stated[rows])
        one_sided = any(columns["op"][row] in ONE_SIDED for row in rows.tolist())
        if numbers[0] > 0 and len(numbers) == len(rows) and not one_sided:
            columns["sequence"][rows] = stated[rows]


def _rows_by_name(names: Sequence[str]) -> dict[str, Ints]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return {name: np.array(mine, dtype=np.int64) for name, mine in rows.items()}


def find_shift(one: Side, other: Side) -> int | None:
    """Return the place of the other's first collective among one's; `None` if unsure."""
    if one.is_numbered and other.is_numbered:
        return _check_numbers(one, other)
    shortest = min(len(one.rows), len(other.rows))
    lowest = max(-MOST_SHIFT, 1 - len(other.rows))
    agreement: dict[int, float] = {}
    for shift in range(lowest, min(MOST_SHIFT, len(one.rows) - 1) + 1):
        mine, theirs = _shared(one, other, shift)
        if mine.stop - mine.start < MIN_SHARED * shortest:
            continue
        if (one.messages[mine] == other.messages[theirs]).all():
            agreement[shift] = _same_steps(one, other, mine, theirs)
    best = max(agreement.values(), default=0.0)
    shifts = [shift for shift, share in agreement.items() if share == best]
    if best < MIN_SAME_STEP:
        return None
    return shifts[0] if len(shifts) == 1 else _nearest(one, other, shifts)


def _check_numbers(one: Side, other: Side) -> int | None:
    """Return 0 if the collectives with equal numbers of torch are equal."""
    _, mine, theirs = np.intersect1d(one.sequence, other.sequence, return_indices=True)
    return 0 if np.array_equal(one.messages[mine], other.messages[theirs]) else None


def _shared(one: Side, other: Side, shift: int) -> tuple[slice, slice]:
    low, high = max(0, shift), min(len(one.rows), len(other.rows) + shift)
    return slice(low, high), slice(low - shift, high - shift)


def _same_steps(one: Side, other: Side, mine: slice, theirs: slice) -> float:
    """Return the share of collectives in the same step; 1 if steps have no numbers in common."""
    if not len(one.step) or not len(other.step):
        return 1.0
    return float((one.step[mine] == other.step[theirs]).mean())


def _nearest(one: Side, other: Side, shifts: list[int]) -> int | None:
    """Return the shift at which the collectives end together, if it is clear by the clocks."""
    if not len(one.end) or not len(other.end):
        return None
    apart = []
    for shift in shifts:
        mine, theirs = _shared(one, other, shift)
        between = one.end[mine] - other.end[theirs]
        some = between[:: 1 + len(between) // MOST_ENDS]
        apart.append(float(np.median(np.abs(some))))
    nearest, next_one = sorted(apart)[:2]
    if nearest * CLEARLY > next_one:
        return None
    return shifts[apart.index(nearest)]


def _rename(columns: Mapping[str, Any], rows: Ints, rank: int) -> None:
    for row in rows.tolist():
        columns["communicator"][row] += f" of rank {rank}"
