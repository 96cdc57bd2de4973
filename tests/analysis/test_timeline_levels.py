"""The cells of a timeline agree with counting instants one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.analysis.timeline import levels as timeline_levels
from profkit.analysis.timeline.counters import Counter
from profkit.analysis.timeline.levels import NONE, Level, Pieces, first_begun, innermost

KINDS = ("a", "b", "c")
END = 60

events = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, len(KINDS) - 1)), max_size=30
)
borders = st.lists(st.integers(-5, END), min_size=2, max_size=9).map(sorted)
Event = tuple[int, int, int]


def _pieces(rows: Sequence[Event]) -> Pieces:
    start, length, kind = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    place = np.arange(len(rows))
    return Pieces(start, start + length, kind, place, place)


def _painted(rows: Sequence[Event]) -> list[int]:
    """Return each instant's event: the first to begin, then the longest, then the first."""
    order = sorted(range(len(rows)), key=lambda at: (rows[at][0], -rows[at][1], at))
    painted = [NONE] * (END + 1)
    for at in order:
        for instant in range(rows[at][0], rows[at][0] + rows[at][1]):
            if painted[instant] == NONE:
                painted[instant] = at
    return painted


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few events fill several blocks."""
    monkeypatch.setattr(timeline_levels, "SMALLEST_BLOCK", 3)
    monkeypatch.setattr(timeline_levels, "PIECES_A_KIND", 1)


@settings(max_examples=100)
@given(events, borders)
def test_cells_are_what_counting_instants_says(rows: list[Event], edges: list[int]) -> None:
    painted = _painted(rows)
    level = Level(first_begun(_pieces(rows)), KINDS)
    found = level.cells(np.array(edges))
    for cell, (low, high) in enumerate(itertools.pairwise(edges)):
        counts = [
            sum(
                painted[at] != NONE and rows[painted[at]][2] == kind
                for at in range(max(low, 0), high)
            )
            for kind in range(len(KINDS))
        ]
        most = max(counts)
        assert found.covered_ns[cell] == sum(counts)
        assert found.dominant_ns[cell] == most
        assert found.kinds[cell] == (counts.index(most) if most else NONE)


@settings(max_examples=60)
@given(events)
def test_each_instant_belongs_to_the_event_that_began_first(rows: list[Event]) -> None:
    pieces = first_begun(_pieces(rows))
    at = Level(pieces, KINDS).at(np.arange(END + 1))
    assert [NONE if place == NONE else int(pieces.rows[place]) for place in at] == _painted(rows)


@settings(max_examples=60)
@given(st.lists(events, max_size=3))
def test_each_instant_belongs_to_the_innermost_region(depths: list[list[Event]]) -> None:
    found = Level(innermost([first_begun(_pieces(rows)) for rows in depths]), KINDS).at(
        np.arange(END + 1)
    )
    pieces = innermost([first_begun(_pieces(rows)) for rows in depths])
    for instant in range(END + 1):
        deepest = next(
            (
                rows[_painted(rows)[instant]]
                for rows in reversed(depths)
                if _painted(rows)[instant] != NONE
            ),
            None,
        )
        shown = None if found[instant] == NONE else int(pieces.kinds[found[instant]])
        assert shown == (None if deepest is None else deepest[2])


@settings(max_examples=60)
@given(events, st.integers(-5, END), st.integers(0, 10), st.booleans())
def test_gaps_are_what_lies_between_pieces(
    rows: list[Event], after: int, longer: int, back: bool
) -> None:
    painted = _painted(rows)
    busy = [at for at in range(END + 1) if painted[at] != NONE]
    gaps = [(low + 1, high) for low, high in itertools.pairwise(busy) if high - low - 1 > longer]
    wanted = (
        [gap for gap in gaps if gap[0] < after][-1:]
        if back
        else [gap for gap in gaps if gap[0] > after][:1]
    )
    found = Level(first_begun(_pieces(rows)), KINDS).gap(after, longer, back=back)
    assert ([tuple(found)] if found else []) == wanted


@settings(max_examples=60)
@given(events, st.integers(0, 40), st.integers(1, 20))
def test_the_longest_in_a_stretch_covers_most_of_it(
    rows: list[Event], low: int, length: int
) -> None:
    pieces = first_begun(_pieces(rows))
    found = Level(pieces, KINDS).longest_in(low, low + length)
    painted = _painted(rows)[low : low + length]
    counts = {at: painted.count(at) for at in painted if at != NONE}
    assert (found is None) == (not counts)
    if found is not None:
        assert min(pieces.ends[found], low + length) - max(pieces.starts[found], low) == max(
            min(end, low + length) - max(start, low)
            for start, end in zip(pieces.starts, pieces.ends, strict=True)
        )


def test_short_pieces_can_be_left_out() -> None:
    level = Level(first_begun(_pieces([(0, 5, 0), (5, 1, 1), (6, 9, 2)])), KINDS).at_least(5)
    assert level.cells(np.array([0, 5, 6, 15])).kinds.tolist() == [0, NONE, 2]


def test_pieces_are_walked_one_by_one() -> None:
    level = Level(first_begun(_pieces([(0, 5, 0), (5, 1, 1), (8, 9, 2)])), KINDS)
    assert [level.beside(at, 1) for at in (-1, 0, 5, 8)] == [0, 1, 2, None]
    assert [level.beside(at, -1) for at in (0, 5, 8, 99)] == [None, 0, 1, 2]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, END), st.integers(-9, 9)), max_size=30), borders)
def test_readings_are_what_their_cells_hold(rows: list[tuple[int, int]], edges: list[int]) -> None:
    rows.sort()
    times, values = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(2))
    found = Counter("", "", times, values.astype(np.float64)).cells(np.array(edges))
    for cell, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = [value for time, value in rows if low <= time < high]
        expected = [sum(inside) / len(inside), min(inside), max(inside)] if inside else [np.nan] * 3
        np.testing.assert_allclose(
            [found.means[cell], found.lows[cell], found.highs[cell]], expected
        )
