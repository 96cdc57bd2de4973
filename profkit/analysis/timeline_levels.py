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
SMALLEST_BLOCK = 64
PIECES_A_KIND = 4
"""A block grows with the number of kinds, so that its sums never take more room than the pieces."""


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
    return Pieces(*(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True))) if parts else NO_PIECES


def first_begun(events: Pieces) -> Pieces:
    """Events in any order as pieces. Where two run at once, the time counts for the one that began first, so that parts add up to the busy time.

    What takes no time, or is over before what began earlier, has no piece.
    """
    if not len(events):
        return events
    pieces = events if _in_order(events.starts, events.ends) else events.chosen(np.lexsort((-events.ends, events.starts)))
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
    borders = np.sort(np.concatenate([border for level in levels for border in (level.starts, level.ends)]))
    borders = borders[np.flatnonzero(np.diff(borders, append=borders[-1] + 1))]  # np.unique would import numpy.ma, for 0.2 s
    chosen = np.full(len(borders) - 1, NONE, dtype=np.int64)
    first = 0
    for level in levels:
        place = _begun_before(level, borders[:-1])
        running = (place >= 0) & (level.ends[place] > borders[:-1])
        chosen[running] = first + place[running]
        first += len(level)
    opens = np.flatnonzero((chosen != NONE) & (np.diff(chosen, prepend=NONE) != 0))
    closes = np.flatnonzero((chosen != NONE) & (np.diff(chosen, append=NONE) != 0)) + 1
    return dataclasses.replace(joined(levels).chosen(chosen[opens]), starts=borders[opens], ends=borders[closes])


def _begun_before(pieces: Pieces, times: Ints) -> Ints:
    """For each moment, the last piece that began at or before it."""
    return np.asarray(np.searchsorted(pieces.starts, times, side="right") - 1)


@dataclass(frozen=True)
class Level:
    """A row of the timeline: its pieces, and what their kinds are called."""

    pieces: Pieces
    kinds: tuple[str, ...]

    @functools.cached_property
    def _block(self) -> int:
        return max(SMALLEST_BLOCK, PIECES_A_KIND * len(self.kinds))

    @functools.cached_property
    def _sums(self) -> Ints:
        """By block and kind, the time that all blocks before cover. Sums of one block are exact as floats up to a hundred days."""
        pieces, kinds = self.pieces, max(1, len(self.kinds))
        blocks = len(pieces) // self._block + 1
        place = np.arange(len(pieces)) // self._block * kinds + pieces.kinds
        each = np.bincount(place, weights=pieces.ends - pieces.starts, minlength=blocks * kinds).astype(np.int64).reshape(blocks, kinds)
        return np.concatenate([np.zeros((1, kinds), np.int64), np.cumsum(each, axis=0)])

    def covered(self, borders: Ints) -> Ints:
        """By cell between two borders and by kind, the time that is covered."""
        return np.asarray(np.diff(self._covered_before(borders), axis=0))

    def _covered_before(self, borders: Ints) -> Ints:
        """By border and kind, the time that is covered before: whole blocks by their sums, the last that began piece by piece, for a border may cut its last."""
        kinds = max(1, len(self.kinds))
        begun = np.searchsorted(self.pieces.starts, borders, side="left")
        block = np.maximum(begun - 1, 0) // self._block
        piece = block[:, None] * self._block + np.arange(self._block)
        border, at = np.nonzero(piece < begun[:, None])
        piece = piece[border, at]
        length = np.minimum(self.pieces.ends[piece], borders[border]) - self.pieces.starts[piece]
        rest = np.bincount(border * kinds + self.pieces.kinds[piece], weights=length, minlength=len(borders) * kinds)
        return np.asarray(self._sums[block] + rest.astype(np.int64).reshape(len(borders), kinds))

    def cells(self, borders: Ints) -> Cells:
        """What the cells between the borders show; of kinds that cover the same time, the first."""
        covered = self.covered(borders)
        kinds = np.argmax(covered, axis=1)
        dominant = covered[np.arange(len(covered)), kinds]
        begun = np.diff(np.searchsorted(self.pieces.starts, borders, side="left"))
        return Cells(np.where(dominant > 0, kinds, NONE), dominant, covered.sum(axis=1), begun)

    def at(self, times: Ints) -> Ints:
        """The piece that covers each moment, `NONE` where none does."""
        if not len(self.pieces):
            return np.full(len(times), NONE)
        place = _begun_before(self.pieces, times)
        return np.where((place >= 0) & (self.pieces.ends[place] > times), place, NONE)

    def longest_in(self, start_ns: int, end_ns: int) -> int | None:
        """The piece that covers most of a stretch; the first of those that cover as much."""
        first, last = np.searchsorted(self.pieces.ends, start_ns, side="right"), np.searchsorted(self.pieces.starts, end_ns, side="left")
        if first >= last:
            return None
        inside = np.minimum(self.pieces.ends[first:last], end_ns) - np.maximum(self.pieces.starts[first:last], start_ns)
        return int(first + np.argmax(inside))

    def beside(self, piece_start_ns: int, step: int) -> int | None:
        """The next piece that begins after a moment (`step` 1), or the last that begins before it (-1)."""
        place = int(np.searchsorted(self.pieces.starts, piece_start_ns, side="right" if step > 0 else "left")) - (step < 0)
        return place if 0 <= place < len(self.pieces) else None

    def gap(self, from_ns: int, longer_ns: int, *, back: bool = False) -> Gap | None:
        """The first gap longer than `longer_ns` that opens after `from_ns`, or the last that opens before it."""
        opens, closes = self.pieces.ends[:-1], self.pieces.starts[1:]
        found = np.flatnonzero((closes - opens > longer_ns) & ((opens < from_ns) if back else (opens > from_ns)))
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
