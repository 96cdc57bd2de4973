"""The part of a timeline that is in view, and the cursor. Nothing here is a widget."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

import numpy as np

from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.opening import OpenTimeline
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import Request, Row, TimelineView, view_timeline
from profkit.analysis.timeline.window import Window

PANS_PER_WIDTH: Final = 8
"""This many key presses move the view by its whole width."""

ROWS_SHOWN: Final = (Group.PHASES, Group.DEVICES, Group.COLLECTIVES)


class RowKey(NamedTuple):
    """Identifies a row, whatever other rows are in view."""

    rank: int
    group: Group
    label: str


class Piece(NamedTuple):
    """One event in a lane of a rank."""

    rank: int
    lane: Lane
    place: int


class Sight:
    """A window of the time axis, the ranks that fit below each other, and a cursor on a cell.

    `view` is what was last drawn.
    """

    def __init__(self, opened: OpenTimeline) -> None:
        self.timeline: Timeline = opened.timeline
        self.window: Window = opened.first.window
        self.expanded: int | None = opened.first.expanded
        self.group: Group = opened.first.group
        self.at_least_ns = 0
        """Shorter events are excluded."""
        self.column = self.window.columns // 2
        self.row = 0
        self.view: TimelineView | None = None
        self.request: Request = opened.first
        """What the view must show."""
        self._top = 0
        self._key: RowKey | None = None
        self._at_ns: int | None = None
        """The time that the cursor was sent to."""
        self._piece: int | None = None
        """The event that the cursor was sent to."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The begin and the end of the run, at least one ns per cell apart."""
        start, end = self.timeline.bounds
        return start, max(end, start + self.window.columns)

    def look(self, columns: int, height: int) -> TimelineView:
        """Update the view for a number of cells per line and at most so many lines.

        It does not wait for what is still to be read. The cursor stays on its row while other rows
        come and go.
        """
        if columns != self.window.columns:
            self.column = min(self.column, columns - 1)
            if self.view is None:
                self.column = columns // 2
            self.window = dataclasses.replace(self.window, columns=columns)
        self.window = self.window.zoomed(1.0, self.window.start_ns, self.bounds)
        ranks = self.timeline.ranks
        self._top = max(0, min(self._top, len(ranks) - 1))
        shown = ranks[self._top : self._top + height]
        request = Request(self.window, shown, self.group, self.expanded, self.at_least_ns)
        self.request = request
        self.view = view_timeline(self.timeline, request, wait=False, before=self.view)
        keys = []
        for row in self.view.rows:
            keys.append(RowKey(row.rank, row.group, row.label))
        row_ranks = [key.rank for key in keys]
        if self._key in keys:
            self.row = keys.index(self._key)
        elif self._key is not None and self._key.rank in row_ranks:
            self.row = row_ranks.index(self._key.rank)
        else:
            self.row = max(0, min(self.row, len(keys) - 1))
        if self.here is not None:
            self._key = keys[self.row]
        return self.view

    def reopen(self, opened: OpenTimeline) -> None:
        """Show a run that has grown; a view of all of it, or of its end, follows the growth."""
        start, end = self.bounds
        at_end = self.window.end_ns == end
        whole = at_end and self.window.start_ns == start
        self.timeline, self.view = opened.timeline, None
        if whole:
            self.fit()
        elif at_end:
            self.window = self.window.moved(self.bounds[1] - self.window.end_ns, self.bounds)

    @property
    def here(self) -> Row | None:
        """The row under the cursor."""
        if self.view is None or self.row >= len(self.view.rows):
            return None
        return self.view.rows[self.row]

    @property
    def lane(self) -> tuple[int, Lane] | None:
        """The rank and the lane under the cursor, if the lane has been read."""
        row = self.here
        if row is None or row.note:
            return None
        lane = self.timeline.lane(row.rank, row.group, row.label, self.at_least_ns)
        return (row.rank, lane) if lane else None

    @property
    def at_ns(self) -> int:
        """The time of the cursor: the time that it was sent to, or the begin of its cell."""
        if self._at_ns is not None:
            return self._at_ns
        return self.window.cell(self.column)[0]

    @property
    def step(self) -> int | None:
        """The step of the cursor's rank at the middle of the cell, or where it was sent to."""
        if self.here is None:
            return None
        steps = self.timeline.steps(self.here.rank)
        moment = self._at_ns
        if moment is None:
            moment = sum(self.window.cell(self.column)) // 2
        place = int(np.searchsorted(steps.start_ns, moment, side="right")) - 1
        if place < 0 or steps.end_ns[place] <= moment:
            return None
        return int(steps.number[place])

    @property
    def piece(self) -> Piece | None:
        """The event that the cursor was sent to, or the longest one in its cell."""
        if self.lane is None:
            return None
        rank, lane = self.lane
        place = self._piece
        if place is None:
            shift = self.timeline.shift(rank)
            start, end = self.window.cell(self.column)
            place = lane.level.longest_in(start - shift, end - shift)
        return None if place is None else Piece(rank, lane, place)

    def pan(self, by: int) -> None:
        by_ns = by * max(1, self.window.length_ns // PANS_PER_WIDTH)
        self.window = self.window.moved(by_ns, self.bounds)
        self._at_ns = self._piece = None

    def zoom(self, factor: float) -> None:
        """Zoom about the cursor."""
        about_ns = self.at_ns
        self.window = self.window.zoomed(factor, about_ns, self.bounds)
        column = self.window.column_of(about_ns)
        if column is not None:
            self.column = column

    def fit(self) -> None:
        """Show the whole run."""
        at_ns = self.at_ns
        self.window = Window(*self.bounds, self.window.columns)
        self.column = self.window.column_of(at_ns) or 0

    def move_cursor(self, by: int) -> None:
        """Move the cursor by cells; beyond the edge the view moves."""
        if 0 <= self.column + by < self.window.columns:
            self.column += by
            self._at_ns = self._piece = None
        else:
            self.pan(by)

    def move_row(self, by: int) -> None:
        """Move the cursor to another row; beyond the edge other ranks come into view."""
        if self.view is None:
            return
        if 0 <= self.row + by < len(self.view.rows):
            self.row += by
        elif 0 <= self._top + by < len(self.timeline.ranks):
            self._top += by
        self._key = self._piece = None

    def point_at(self, column: int, row: int | None) -> None:
        """Put the cursor on a cell, no longer on an event; without a row it stays on its own."""
        self.column = column
        if row is not None:
            self.row, self._key = row, None
        self._at_ns = self._piece = None

    def open_rank(self, rank: int, room: int) -> None:
        """Show all lanes of a rank, with the rank among the lines that there is room for."""
        self.expanded = rank
        place = self.timeline.ranks.index(rank)
        if not self._top <= place < self._top + room:
            self._top = place
        self._key, self._piece = RowKey(rank, Group.PHASES, ""), None

    def expand(self) -> None:
        """Open the cursor's rank, or close it."""
        if self.here is not None and self.expanded == self.here.rank:
            self.expanded = None
        elif self.here is not None:
            self.expanded = self.here.rank

    def show_next_group(self) -> None:
        """Show phases, devices or collectives in the row of each rank, in turn."""
        self.group = ROWS_SHOWN[(ROWS_SHOWN.index(self.group) + 1) % len(ROWS_SHOWN)]
        self._key = None
        if self.here is not None:
            self._key = RowKey(self.here.rank, self.group, "")

    def show_stretch(self, start_ns: int, end_ns: int, *, share: float | None = None) -> None:
        """Bring a stretch into view, and the cursor to its begin.

        The stretch takes a share of the width. Without one the scale stays, if the stretch fits.
        """
        window, bounds = self.window, self.bounds
        last_ns = max(start_ns, end_ns - 1)
        if share is not None:
            end_ns = max(end_ns, start_ns + 1)
            whole = Window(start_ns, end_ns, window.columns)
            self.window = whole.around(start_ns, end_ns, bounds, share=share)
        elif end_ns - start_ns > window.length_ns:
            self.window = window.around(start_ns, end_ns, bounds)
        elif window.column_of(start_ns) is None or window.column_of(last_ns) is None:
            by_ns = (start_ns + end_ns - window.start_ns - window.end_ns) // 2
            self.window = window.moved(by_ns, bounds)
        self.column = self.window.column_of(start_ns) or 0
        self._at_ns, self._piece = start_ns, None

    def show_piece(self, piece: Piece, *, share: float | None = None) -> int:
        """Bring an event into view, and the cursor to its row and begin; return its duration."""
        shift, pieces = self.timeline.shift(piece.rank), piece.lane.level.pieces
        start_ns, end_ns = int(pieces.starts[piece.place]), int(pieces.ends[piece.place])
        self.show_stretch(start_ns + shift, end_ns + shift, share=share)
        self._key, self._piece = RowKey(piece.rank, piece.lane.group, piece.lane.label), piece.place
        return end_ns - start_ns
