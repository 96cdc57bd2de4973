"""One row of a timeline at any level of detail, exact to the nanosecond.

Time is cut into pieces that do not overlap, each with a kind and the row of the table that it came
from. Sums over blocks of pieces are kept with them, so that a cell that holds a million pieces
costs as much as one that holds ten: a binary search for each of its boundaries, and one block.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from profkit.frame.estimate import Ints

Codes: TypeAlias = npt.NDArray[Any]
"""Small whole numbers of any width."""

NONE = -1
SMALLEST_BLOCK = 16
PIECES_A_KIND = 1
"""A block has at least so many pieces per kind, so that its sums take no more room than they do.

The cost of a boundary grows with the length of a block.
"""


@dataclass(frozen=True)
class Pieces:
    """Pieces of time in order and without overlaps, each with a kind, a name and a table row."""

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
    """Each cell's dominant kind (or `NONE`), its time, all kinds' time, and starts in it."""

    kinds: Ints
    dominant_ns: Ints
    covered_ns: Ints
    begun: Ints


def first_begun(events: Pieces) -> Pieces:
    """Cut events in any order into pieces; if two overlap, the first to begin has the time.

    So the pieces add up to the busy time. An event that takes no time, or is over before an earlier
    one is, has no piece.
    """
    if not len(events):
        return events
    after = np.diff(events.starts)
    longest_first = (after > 0) | (np.diff(events.ends) <= 0)
    if not ((after >= 0) & longest_first).all():
        events = events.chosen(np.lexsort((-events.ends, events.starts)))
    reach = np.maximum.accumulate(events.ends)
    begins = np.concatenate([events.starts[:1], np.maximum(reach[:-1], events.starts[1:])])
    seen = events.ends > begins
    visible = dataclasses.replace(events, starts=begins)
    return visible if seen.all() else visible.chosen(seen)


def innermost(levels: Sequence[Pieces]) -> Pieces:
    """Merge nested regions into one row: each moment belongs to the innermost region there.

    `levels` are in order, the outermost first.
    """
    levels = [level for level in levels if len(level)]
    if not levels:
        return Pieces(*([np.empty(0, dtype=np.int64)] * 5))
    columns = zip(*(level.columns for level in levels), strict=True)
    together = Pieces(*map(np.concatenate, columns))
    borders = np.sort(np.concatenate([together.starts, together.ends]))
    # `np.unique` would import numpy.ma, which takes 0.2 s.
    borders = borders[np.flatnonzero(np.diff(borders, append=borders[-1] + 1))]
    chosen = np.full(len(borders) - 1, NONE, dtype=np.int64)
    first = 0
    for level in levels:
        place = np.searchsorted(level.starts, borders[:-1], side="right") - 1
        running = (place >= 0) & (level.ends[place] > borders[:-1])
        chosen[running] = first + place[running]
        first += len(level)
    opens = np.flatnonzero((chosen != NONE) & (np.diff(chosen, prepend=NONE) != 0))
    closes = np.flatnonzero((chosen != NONE) & (np.diff(chosen, append=NONE) != 0)) + 1
    pieces = together.chosen(chosen[opens])
    return dataclasses.replace(pieces, starts=borders[opens], ends=borders[closes])


def nearest(times: Ints, wanted: npt.NDArray[np.bool_], from_ns: int, *, back: bool) -> int | None:
    """Return the first wanted place after a moment, or the last one before it."""
    if back:
        found = np.flatnonzero(wanted & (times < from_ns))[::-1]
    else:
        found = np.flatnonzero(wanted & (times > from_ns))
    return int(found[0]) if len(found) else None


class _Reach(NamedTuple):
    """The pieces that begin before each of some moments.

    `block` is the one in which the last of them is, `place` and `starts` are all pieces of that
    block, and `begun` says which of them begin before the moment.
    """

    times: Ints
    block: Ints
    place: Ints
    starts: Ints
    begun: npt.NDArray[np.bool_]


class Blocks(NamedTuple):
    """Each block's first start, and by kind the time that all blocks before it cover."""

    starts: Ints
    covered: Ints


class Level:
    """A row of the timeline: its pieces, and the names of their kinds."""

    def __init__(self, pieces: Pieces, kinds: tuple[str, ...], kept: Blocks | None = None) -> None:
        """Keep the pieces; `kept` are their blocks, if both are mapped from a file."""
        self.pieces = pieces
        self.kinds = kinds
        self.kept = kept
        """Set if pieces and blocks take no memory that the system cannot reclaim."""
        self._block = max(SMALLEST_BLOCK, PIECES_A_KIND * len(kinds))

    @property
    def blocks_shape(self) -> tuple[int, int]:
        """The number of blocks, the last of which is not full, and of kinds."""
        return len(self.pieces) // self._block + 1, max(1, len(self.kinds))

    @functools.cached_property
    def blocks(self) -> Blocks:
        """The sums of all blocks; those of one block are exact as floats up to a hundred days."""
        if self.kept is not None:
            return self.kept
        pieces = self.pieces
        count, kinds = self.blocks_shape
        place = np.arange(len(pieces)) // self._block * kinds + pieces.kinds
        length = pieces.ends - pieces.starts
        sums = np.bincount(place, weights=length, minlength=count * kinds).astype(np.int64)
        total = np.cumsum(sums.reshape(count, kinds), axis=0)
        before = np.concatenate([np.zeros((1, kinds), np.int64), total[:-1]])
        return Blocks(np.ascontiguousarray(pieces.starts[:: self._block]), before)

    def _reach(self, times: Ints) -> _Reach:
        """Search among the blocks, which are few and close together, and then in one of them."""
        last = np.maximum(np.searchsorted(self.blocks.starts, times, side="left") - 1, 0)
        place = last[:, None] * self._block + np.arange(self._block)
        inside = place < len(self.pieces)
        place = np.where(inside, place, 0)
        starts = self.pieces.starts[place]
        return _Reach(times, last, place, starts, inside & (starts < times[:, None]))

    def _covered_before(self, reach: _Reach) -> Ints:
        """Return the time covered before each moment, by kind.

        Whole blocks count by their sums and the last one piece by piece, because the moment may cut
        its last piece.
        """
        kinds = self.blocks_shape[1]
        ends = np.minimum(self.pieces.ends[reach.place], reach.times[:, None])
        length = np.where(reach.begun, ends - reach.starts, 0)
        cell = np.arange(len(reach.times))[:, None] * kinds + self.pieces.kinds[reach.place]
        rest = np.bincount(cell.ravel(), weights=length.ravel(), minlength=len(reach.times) * kinds)
        whole = self.blocks.covered[reach.block]
        return np.asarray(whole + rest.astype(np.int64).reshape(-1, kinds))

    def _begun_before(self, reach: _Reach) -> Ints:
        return np.asarray(reach.block * self._block + reach.begun.sum(axis=1))

    def cells(self, borders: Ints) -> Cells:
        """Return what the cells between the boundaries show; of equal kinds, the first."""
        count = len(borders) - 1
        if not len(self.pieces):
            nothing = np.zeros(count, dtype=np.int64)
            return Cells(nothing + NONE, nothing, nothing, nothing)
        reach = self._reach(borders)
        covered = np.diff(self._covered_before(reach), axis=0)
        kinds = np.argmax(covered, axis=1)
        dominant = covered[np.arange(count), kinds]
        shown = np.where(dominant > 0, kinds, NONE)
        return Cells(shown, dominant, covered.sum(axis=1), np.diff(self._begun_before(reach)))

    def at(self, times: Ints) -> Ints:
        """Return the piece that covers each moment, or `NONE`."""
        if not len(self.pieces):
            return np.full(len(times), NONE)
        place = self._begun_before(self._reach(times + 1)) - 1
        return np.where((place >= 0) & (self.pieces.ends[place] > times), place, NONE)

    def longest_in(self, start_ns: int, end_ns: int) -> int | None:
        """Return the piece that covers most of a stretch; the first of equal ones."""
        first = np.searchsorted(self.pieces.ends, start_ns, side="right")
        last = np.searchsorted(self.pieces.starts, end_ns, side="left")
        if first >= last:
            return None
        ends = np.minimum(self.pieces.ends[first:last], end_ns)
        starts = np.maximum(self.pieces.starts[first:last], start_ns)
        return int(first + np.argmax(ends - starts))

    def beside(self, piece_start_ns: int, step: int) -> int | None:
        """Return the next piece that begins after a moment (`step` 1) or the last before (-1)."""
        starts = self.pieces.starts
        if step > 0:
            place = int(np.searchsorted(starts, piece_start_ns, side="right"))
        else:
            place = int(np.searchsorted(starts, piece_start_ns, side="left")) - 1
        return place if 0 <= place < len(self.pieces) else None

    def gap(self, from_ns: int, longer_ns: int, *, back: bool = False) -> Gap | None:
        """Return the first gap that opens after `from_ns`, or the last one before it.

        Only gaps longer than `longer_ns` count.
        """
        opens, closes = self.pieces.ends[:-1], self.pieces.starts[1:]
        place = nearest(opens, closes - opens > longer_ns, from_ns, back=back)
        return None if place is None else Gap(int(opens[place]), int(closes[place]))

    def at_least(self, shortest_ns: int) -> Level:
        """Return the level without pieces that are shorter."""
        kept = self.pieces.ends - self.pieces.starts >= shortest_ns
        return self if kept.all() else Level(self.pieces.chosen(kept), self.kinds)
