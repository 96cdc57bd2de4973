"""One row of a timeline at any level of detail: what covers each cell, exact to the nanosecond.

Time is cut into pieces that do not overlap, each with a kind and the row of the table that it came
from. Sums over blocks of pieces are kept beside them, so that a cell that holds a million pieces
costs as much as one that holds ten: a binary search for each of its borders, and one block.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from profkit.analysis.estimate import Floats, Ints

Codes: TypeAlias = npt.NDArray[Any]
"""Small whole numbers of whatever width is enough."""

NONE = -1
SMALLEST_BLOCK = 16
PIECES_A_KIND = 1
"""A block grows with the number of kinds, so that its sums never take more room than the pieces. A border costs as much as a block is long."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of time in order, apart from each other, with the kind, the name and the table's row of each."""

    starts: Ints
    ends: Ints
    kinds: Codes
    names: Codes
    rows: Codes

    @property
    def columns(self) -> tuple[Codes, ...]:
        return self.starts, self.ends, self.kinds, self.names, self.rows

    def chosen(self, which: npt.NDArray[Any] | slice) -> Pieces:
        return Pieces(*(column[which] for column in self.columns))

    def __len__(self) -> int:
        return len(self.starts)


class Gap(NamedTuple):
    """A stretch in which a row shows nothing."""

    start_ns: int
    end_ns: int


class Cells(NamedTuple):
    """What each cell of a row shows: its dominant kind (`NONE` where nothing is), the time that this kind and all kinds cover, and how many begin."""

    kinds: Ints
    dominant_ns: Ints
    covered_ns: Ints
    begun: Ints


NO_PIECES = Pieces(*(np.empty(0, dtype=np.int64) for _ in range(5)))


def joined(parts: Sequence[Pieces]) -> Pieces:
    """One after the other, in no order yet."""
    return (
        Pieces(
            *(
                np.concatenate(columns)
                for columns in zip(*(part.columns for part in parts), strict=True)
            )
        )
        if parts
        else NO_PIECES
    )


def first_begun(events: Pieces) -> Pieces:
    """Events in any order as pieces. Where two run at once, the time counts for the one that began first, so that parts add up to the busy time.

    What takes no time, or is over before what began earlier, has no piece.
    """
    if not len(events):
        return events
    pieces = (
        events
        if _in_order(events.starts, events.ends)
        else events.chosen(np.lexsort((-events.ends, events.starts)))
    )
    reach = np.maximum.accumulate(pieces.ends)
    begins = np.concatenate([pieces.starts[:1], np.maximum(reach[:-1], pieces.starts[1:])])
    seen = pieces.ends > begins
    visible = dataclasses.replace(pieces, starts=begins)
    return visible if seen.all() else visible.chosen(seen)


def _in_order(starts: Ints, ends: Ints) -> bool:
    """By their beginning; of those that begin at once, the longest first."""
    after = np.diff(starts)
    return bool((after > 0).all() or ((after >= 0) & ((after > 0) | (np.diff(ends) <= 0))).all())


def innermost(levels: Sequence[Pieces]) -> Pieces:
    """Nested regions as one row: each moment belongs to the last of the levels, outermost first, that has something then."""
    levels = [level for level in levels if len(level)]
    if not levels:
        return NO_PIECES
    borders = np.sort(
        np.concatenate([border for level in levels for border in (level.starts, level.ends)])
    )
    borders = borders[
        np.flatnonzero(np.diff(borders, append=borders[-1] + 1))
    ]  # np.unique would import numpy.ma, for 0.2 s
    chosen = np.full(len(borders) - 1, NONE, dtype=np.int64)
    first = 0
    for level in levels:
        place = _begun_before(level, borders[:-1])
        running = (place >= 0) & (level.ends[place] > borders[:-1])
        chosen[running] = first + place[running]
        first += len(level)
    opens = np.flatnonzero((chosen != NONE) & (np.diff(chosen, prepend=NONE) != 0))
    closes = np.flatnonzero((chosen != NONE) & (np.diff(chosen, append=NONE) != 0)) + 1
    return dataclasses.replace(
        joined(levels).chosen(chosen[opens]), starts=borders[opens], ends=borders[closes]
    )


def _begun_before(pieces: Pieces, times: Ints) -> Ints:
    """For each moment, the last piece that began at or before it."""
    return np.asarray(np.searchsorted(pieces.starts, times, side="right") - 1)


class _Reach(NamedTuple):
    """How far the pieces go that begin before each of some moments: the block in which the last of them is, and which of it those are."""

    times: Ints
    block: Ints
    place: Ints
    starts: Ints
    begun: npt.NDArray[np.bool_]


class Blocks(NamedTuple):
    """What is known of neighbouring pieces together: when each block's first begins, and by kind the time that all blocks before cover."""

    starts: Ints
    covered: Ints


@dataclass(frozen=True)
class Level:
    """A row of the timeline: its pieces, and what their kinds are called."""

    pieces: Pieces
    kinds: tuple[str, ...]
    kept: Blocks | None = None
    """Where pieces and blocks are mapped from a file, the blocks: neither takes memory that the system could not have back."""

    @functools.cached_property
    def _block(self) -> int:
        return max(SMALLEST_BLOCK, PIECES_A_KIND * len(self.kinds))

    @property
    def blocks_shape(self) -> tuple[int, int]:
        """How many blocks there are, the last of them not full, and kinds."""
        return len(self.pieces) // self._block + 1, max(1, len(self.kinds))

    @functools.cached_property
    def blocks(self) -> Blocks:
        """Sums of one block are exact as floats up to a hundred days."""
        if self.kept is not None:
            return self.kept
        pieces = self.pieces
        count, kinds = self.blocks_shape
        place = np.arange(len(pieces)) // self._block * kinds + pieces.kinds
        each = (
            np.bincount(place, weights=pieces.ends - pieces.starts, minlength=count * kinds)
            .astype(np.int64)
            .reshape(count, kinds)
        )
        before = np.concatenate([np.zeros((1, kinds), np.int64), np.cumsum(each, axis=0)[:-1]])
        return Blocks(np.ascontiguousarray(pieces.starts[:: self._block]), before)

    def _reach(self, times: Ints) -> _Reach:
        """A search among the blocks, which are few and lie close together, and then in one of them."""
        last = np.maximum(np.searchsorted(self.blocks.starts, times, side="left") - 1, 0)
        place = last[:, None] * self._block + np.arange(self._block)
        inside = place < len(self.pieces)
        place = np.where(inside, place, 0)
        starts = self.pieces.starts[place]
        return _Reach(times, last, place, starts, inside & (starts < times[:, None]))

    def _covered_before(self, reach: _Reach) -> Ints:
        """By moment and kind, the time that is covered before: whole blocks by their sums, the last piece by piece, for a border may cut its last."""
        kinds = self.blocks_shape[1]
        length = np.where(
            reach.begun,
            np.minimum(self.pieces.ends[reach.place], reach.times[:, None]) - reach.starts,
            0,
        )
        cell = np.arange(len(reach.times))[:, None] * kinds + self.pieces.kinds[reach.place]
        rest = np.bincount(cell.ravel(), weights=length.ravel(), minlength=len(reach.times) * kinds)
        return np.asarray(
            self.blocks.covered[reach.block] + rest.astype(np.int64).reshape(-1, kinds)
        )

    def cells(self, borders: Ints) -> Cells:
        """What the cells between the borders show; of kinds that cover the same time, the first."""
        count = len(borders) - 1
        if not len(self.pieces):
            nothing = np.zeros(count, dtype=np.int64)
            return Cells(nothing + NONE, nothing, nothing, nothing)
        reach = self._reach(borders)
        covered = np.diff(self._covered_before(reach), axis=0)
        kinds = np.argmax(covered, axis=1)
        dominant = covered[np.arange(count), kinds]
        return Cells(
            np.where(dominant > 0, kinds, NONE),
            dominant,
            covered.sum(axis=1),
            np.diff(self._begun_before(reach)),
        )

    def at(self, times: Ints) -> Ints:
        """The piece that covers each moment, `NONE` where none does."""
        if not len(self.pieces):
            return np.full(len(times), NONE)
        place = self._begun_before(self._reach(times + 1)) - 1
        return np.where((place >= 0) & (self.pieces.ends[place] > times), place, NONE)

    def _begun_before(self, reach: _Reach) -> Ints:
        return np.asarray(reach.block * self._block + reach.begun.sum(axis=1))

    def longest_in(self, start_ns: int, end_ns: int) -> int | None:
        """The piece that covers most of a stretch; the first of those that cover as much."""
        first, last = (
            np.searchsorted(self.pieces.ends, start_ns, side="right"),
            np.searchsorted(self.pieces.starts, end_ns, side="left"),
        )
        if first >= last:
            return None
        inside = np.minimum(self.pieces.ends[first:last], end_ns) - np.maximum(
            self.pieces.starts[first:last], start_ns
        )
        return int(first + np.argmax(inside))

    def beside(self, piece_start_ns: int, step: int) -> int | None:
        """The next piece that begins after a moment (`step` 1), or the last that begins before it (-1)."""
        place = int(
            np.searchsorted(
                self.pieces.starts, piece_start_ns, side="right" if step > 0 else "left"
            )
        ) - (step < 0)
        return place if 0 <= place < len(self.pieces) else None

    def gap(self, from_ns: int, longer_ns: int, *, back: bool = False) -> Gap | None:
        """The first gap longer than `longer_ns` that opens after `from_ns`, or the last that opens before it."""
        opens, closes = self.pieces.ends[:-1], self.pieces.starts[1:]
        found = np.flatnonzero(
            (closes - opens > longer_ns) & ((opens < from_ns) if back else (opens > from_ns))
        )
        if not len(found):
            return None
        place = found[-1 if back else 0]
        return Gap(int(opens[place]), int(closes[place]))

    def at_least(self, shortest_ns: int) -> Level:
        """The same without what is shorter, as far as it is seen."""
        kept = self.pieces.ends - self.pieces.starts >= shortest_ns
        return self if kept.all() else Level(self.pieces.chosen(kept), self.kinds)


class Readings(NamedTuple):
    """A counter by cell: mean, smallest and largest of the readings taken in it; NaN where there are none."""

    means: Floats
    lows: Floats
    highs: Floats


def read_cells(times: Ints, values: Floats, borders: Ints) -> Readings:
    """Readings in order of time, by the cells between the borders."""
    place = np.searchsorted(times, borders, side="left")
    first, count = place[:-1], np.diff(place)
    some = count > 0
    shown = Readings(*(np.full(len(count), np.nan) for _ in range(3)))
    if some.any():
        inside = values[: place[-1]]
        shown.means[some] = np.add.reduceat(inside, first[some]) / count[some]
        shown.lows[some] = np.minimum.reduceat(inside, first[some])
        shown.highs[some] = np.maximum.reduceat(inside, first[some])
    return shown
