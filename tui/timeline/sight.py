"""What of a timeline is in sight, and where the cursor is: keys change it, and drawing shows it. Nothing here is a widget."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

import numpy as np

from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.opening import OpenTimeline
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import Request, Row, TimelineView, view_timeline
from profkit.analysis.timeline.window import Window

PAN_SHARE: Final = 8
"""A key moves the view by one part in so many."""

ROWS_SHOWN: Final = (Group.PHASES, Group.DEVICES, Group.COLLECTIVES)


class RowKey(NamedTuple):
    """A row, whatever rows there are beside it."""

    rank: int
    group: Group
    label: str


class Piece(NamedTuple):
    """One event of a lane of a rank."""

    rank: int
    lane: Lane
    place: int


class Sight:
    """A window of the axis and the ranks that fit below each other, with a cursor on a cell; `view` is what was last seen."""

    def __init__(self, opened: OpenTimeline) -> None:
        self.timeline: Timeline = opened.timeline
        self.window: Window = opened.first.window
        self.expanded: int | None = opened.first.expanded
        self.group: Group = opened.first.group
        self.at_least_ns = 0
        self.column = self.window.columns // 2
        self.row = 0
        self.view: TimelineView | None = None
        self._height = 1
        self._top = 0
        self._key: RowKey | None = None
        self._at_ns: int | None = None
        self._piece: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        start, end = self.timeline.bounds
        return start, max(end, start + self.window.columns)

    @property
    def is_whole(self) -> bool:
        """Whether all of the run is in sight."""
        return (self.window.start_ns, self.window.end_ns) == self.bounds

    def fit_into(self, columns: int, height: int) -> None:
        """There is room for so many cells, and lines of them."""
        self._height = height
        if columns != self.window.columns:
            self.column = columns // 2 if self.view is None else min(self.column, columns - 1)
            self.window = dataclasses.replace(self.window, columns=columns)
        self.window = self.window.zoomed(1.0, self.window.start_ns, self.bounds)

    def request(self) -> Request:
        ranks = self.timeline.ranks
        self._top = max(0, min(self._top, len(ranks) - 1))
        return Request(
            self.window,
            ranks[self._top : self._top + self._height],
            self.group,
            self.expanded,
            self.at_least_ns,
        )

    def look(self) -> TimelineView:
        """What is seen now, without waiting for what is still to be read; the cursor stays on its row while others come and go."""
        self.view = view_timeline(self.timeline, self.request(), wait=False, before=self.view)
        self.row = self._find_row(self.view)
        if self.here is not None:
            self._key = RowKey(self.here.rank, self.here.group, self.here.label)
        return self.view

    def _find_row(self, view: TimelineView) -> int:
        keys = [RowKey(row.rank, row.group, row.label) for row in view.rows]
        if self._key in keys:
            return keys.index(self._key)
        own = [place for place, key in enumerate(keys) if self._key and key.rank == self._key.rank]
        return own[0] if own else max(0, min(self.row, len(keys) - 1))

    def reopen(self, opened: OpenTimeline) -> None:
        """The same of a run that has grown: who saw all of it, or its end, sees that again."""
        whole, at_end = self.is_whole, self.window.end_ns == self.bounds[1]
        self.timeline, self.view = opened.timeline, None
        if whole:
            self.fit()
        elif at_end:
            self.window = self.window.moved(self.bounds[1] - self.window.end_ns, self.bounds)

    @property
    def here(self) -> Row | None:
        """The row under the cursor."""
        return self.view.rows[self.row] if self.view and self.row < len(self.view.rows) else None

    @property
    def lane(self) -> tuple[int, Lane] | None:
        """The rank and the lane under the cursor, where it has been read."""
        row = self.here
        if row is None or row.note:
            return None
        lane = self.timeline.lane(row.rank, row.group, row.label, self.at_least_ns)
        return (row.rank, lane) if lane else None

    @property
    def at_ns(self) -> int:
        """The moment that the cursor is at: where it was sent to, else the beginning of its cell."""
        return self.window.cell(self.column)[0] if self._at_ns is None else self._at_ns

    @property
    def step(self) -> int | None:
        """The step that the cursor's rank is in there."""
        if self.here is None:
            return None
        steps = self.timeline.steps(self.here.rank)
        moment = sum(self.window.cell(self.column)) // 2 if self._at_ns is None else self._at_ns
        place = int(np.searchsorted(steps.start_ns, moment, side="right")) - 1
        return int(steps.number[place]) if place >= 0 and steps.end_ns[place] > moment else None

    @property
    def threshold_ns(self) -> int:
        """What is too short to look for: what is left out, and what would not fill a cell."""
        return max(self.at_least_ns, int(self.window.cell_ns))

    @property
    def piece(self) -> Piece | None:
        """The event that the cursor was sent to, else the one that covers most of its cell."""
        if self.lane is None:
            return None
        rank, lane = self.lane
        shift = self.timeline.shift(rank)
        start, end = self.window.cell(self.column)
        place = (
            self._piece
            if self._piece is not None
            else lane.level.longest_in(start - shift, end - shift)
        )
        return None if place is None else Piece(rank, lane, place)

    def stretch_of(self, piece: Piece) -> tuple[int, int]:
        """From when to when an event takes, on the axis."""
        shift, pieces = self.timeline.shift(piece.rank), piece.lane.level.pieces
        return int(pieces.starts[piece.place]) + shift, int(pieces.ends[piece.place]) + shift

    def leave_place(self) -> None:
        """The cursor is not any more where it was sent to."""
        self._at_ns = self._piece = None

    def pan(self, by: int) -> None:
        self.window = self.window.moved(
            by * max(1, self.window.length_ns // PAN_SHARE), self.bounds
        )
        self.leave_place()

    def zoom(self, factor: float) -> None:
        about_ns = self.at_ns
        self.window = self.window.zoomed(factor, about_ns, self.bounds)
        column = self.window.column_of(about_ns)
        self.column = self.column if column is None else column

    def fit(self) -> None:
        """All of the run."""
        at = self.at_ns
        self.window = Window(*self.bounds, self.window.columns)
        self.column = self.window.column_of(at) or 0

    def move_cursor(self, by: int) -> None:
        if 0 <= self.column + by < self.window.columns:
            self.column += by
            self.leave_place()
        else:
            self.pan(by)

    def move_row(self, by: int) -> None:
        if self.view is None:
            return
        if 0 <= self.row + by < len(self.view.rows):
            self.row += by
        elif 0 <= self._top + by < len(self.timeline.ranks):
            self._top += by
        self._key = self._piece = None

    def point_at(self, column: int, row: int | None) -> None:
        """Put the cursor on a cell; without a row it stays on its own."""
        self.column = column
        if row is not None:
            self.row, self._key = row, None
        self.leave_place()

    def step_ranks(self, by: int, room: int) -> None:
        """Open the next rank in place of the one that is open."""
        ranks = self.timeline.ranks
        at = ranks.index(
            self.expanded
            if self.expanded is not None
            else self.here.rank
            if self.here
            else ranks[0]
        )
        self.open_rank(ranks[(at + by) % len(ranks)], room)

    def open_rank(self, rank: int, room: int) -> None:
        """Show all that a rank has, and the rank itself among the lines there is room for."""
        self.expanded = rank
        place = self.timeline.ranks.index(rank)
        if not self._top <= place < self._top + room:
            self._top = place
        self._key, self._piece = RowKey(rank, Group.PHASES, ""), None

    def expand(self) -> None:
        """Open the cursor's rank, or close it."""
        if self.here is not None:
            self.expanded = None if self.expanded == self.here.rank else self.here.rank

    def show_next_group(self) -> None:
        """Another thing of each rank in its row."""
        self.group = ROWS_SHOWN[(ROWS_SHOWN.index(self.group) + 1) % len(ROWS_SHOWN)]
        self._key = RowKey(self.here.rank, self.group, "") if self.here else None

    def leave_out(self, shorter_than_ns: int) -> None:
        self.at_least_ns = shorter_than_ns
        self.leave_place()

    def show_stretch(self, start_ns: int, end_ns: int, *, share: float | None = None) -> None:
        """Bring a stretch into view and the cursor to its beginning. It takes that share of the width; without one the scale stays, where it fits."""
        if share is not None:
            self.window = Window(start_ns, max(end_ns, start_ns + 1), self.window.columns).around(
                start_ns, max(end_ns, start_ns + 1), self.bounds, share=share
            )
        elif end_ns - start_ns > self.window.length_ns:
            self.window = self.window.around(start_ns, end_ns, self.bounds)
        elif (
            self.window.column_of(start_ns) is None
            or self.window.column_of(max(start_ns, end_ns - 1)) is None
        ):
            self.window = self.window.moved(
                (start_ns + end_ns - self.window.start_ns - self.window.end_ns) // 2, self.bounds
            )
        self.column = self.window.column_of(start_ns) or 0
        self._at_ns, self._piece = start_ns, None

    def show_piece(self, piece: Piece, *, share: float | None = None) -> None:
        """Bring an event into view, the cursor on its row and on it."""
        self.show_stretch(*self.stretch_of(piece), share=share)
        self._key, self._piece = RowKey(piece.rank, piece.lane.group, piece.lane.label), piece.place
