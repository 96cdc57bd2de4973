"""Jumps on the timeline: to a step, a time, an event, a gap, a late rank, or a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from profkit.analysis.change_words import say_change
from profkit.analysis.timeline.lanes import Group
from profkit.errors import UsageError
from profkit.text import duration
from profkit.tui.screens.base import Place
from profkit.tui.timeline.lane_screen import LaneScreen
from profkit.tui.timeline.sight import Piece
from profkit.tui.timeline.words import parse_step, parse_time
from profkit.tui.widgets.row_order import compile_filter

DIRECTIONS: Final = {1: "after", -1: "before"}
"""The word for each direction of a jump."""

EVENT_SHARE: Final = 0.2
"""An event that another screen asked for takes this share of the width."""

STEP_SHARE: Final = 0.8
"""A step that was asked for, or an event that is zoomed to, takes this share of the width."""


class JumpScreen(LaneScreen):
    """A timeline with keys that move the cursor to what they look for."""

    _matches: Callable[[str], bool] | None = None
    """Tells the names of events that `n` and `N` look for."""

    def action_end(self, which: int) -> None:
        """Go to the first or the last step."""
        span = self.seen.timeline.step_range()
        if span is not None:
            self._go_to_step(span[which])

    def action_go_to(self, text: str | None = None) -> None:
        """Go to a step or a time; without a text, ask for it."""
        if text is None:
            self.prompt("go to a step (120) or a time (12.5s, 300ms)", self.action_go_to)
            return
        step = parse_step(text)
        if step is not None:
            self._go_to_step(step)
            return
        try:
            time_ns = parse_time(text)
        except UsageError as error:
            self.tell(str(error))
            return
        low, high = self.seen.bounds
        if low <= time_ns < high:
            self.seen.show_stretch(time_ns, time_ns)
            self.redraw()
        else:
            self.tell(f"the run goes from {duration(low)} to {duration(high)}")

    def _go_to_step(self, step: int) -> None:
        timeline = self.seen.timeline
        found = timeline.step_bounds(step)
        if found is None:
            words = f"no step {step}"
            known = timeline.step_range()
            if known is not None:
                words += f": there are {known[0]} to {known[1]}"
            self.tell(words)
            return
        self.seen.show_stretch(*found, share=STEP_SHARE)
        self.tell(f"step {step}: {duration(found[1] - found[0])}")
        self.redraw()

    def _show_event(self, piece: Piece, *, share: float | None = None) -> None:
        """Put the cursor on an event, and show its name and duration."""
        length_ns = self.seen.show_piece(piece, share=share)
        self.tell(f"{self.seen.timeline.name(*piece)}  {duration(length_ns)}")
        self.redraw()

    def action_event(self, by: int) -> None:
        """Go to the next event in the lane under the cursor."""
        sight = self.seen
        if sight.lane is None:
            return
        rank, lane = sight.lane
        place = lane.level.beside(sight.at_ns - sight.timeline.shift(rank), by)
        if place is None:
            self.tell(f"no event {DIRECTIONS[by]} this one")
        else:
            self._show_event(Piece(rank, lane, place))

    def action_gap(self, by: int) -> None:
        """Go to the next gap in the lane under the cursor that is wide enough to see."""
        sight = self.seen
        if sight.lane is None:
            return
        rank, lane = sight.lane
        visible_ns = max(sight.at_least_ns, int(sight.window.cell_ns))
        gap = sight.timeline.gap(rank, lane, sight.at_ns, visible_ns, back=by < 0)
        if gap is None:
            words = f"no gap of more than {duration(visible_ns)} {DIRECTIONS[by]} here"
            self.tell(f"{words}; zoom in to find shorter ones")
            return
        sight.show_stretch(*gap)
        self.tell(f"r{rank} {lane.label}: nothing for {duration(gap.end_ns - gap.start_ns)}")
        self.redraw()

    def action_late(self, by: int) -> None:
        """Go to the next collective for which ranks waited, and open the late rank."""
        sight = self.seen
        visible_ns = max(sight.at_least_ns, int(sight.window.cell_ns))
        found = sight.timeline.late(sight.at_ns, visible_ns, back=by < 0)
        if found is None:
            least = f"{duration(visible_ns)} {DIRECTIONS[by]} here"
            words = f"no rank made others wait for more than {least}"
            self.tell(f"{words}; zoom in to find shorter waits")
            return
        sight.open_rank(found.rank, self.canvas.room)
        sight.show_stretch(found.time_ns, found.time_ns)
        waited = f"others had waited up to {duration(found.waited_ns)}"
        self.tell(f"rank {found.rank} was last in step {found.step}: {waited}")
        self.redraw()

    def action_change(self, by: int) -> None:
        """Go to the next change of the step time, and say it."""
        sight = self.seen
        steps = []
        for change in sight.timeline.changes:
            bounds = sight.timeline.step_bounds(change.first_step)
            if bounds is not None and (bounds[0] - sight.at_ns) * by > 0:
                steps.append((abs(bounds[0] - sight.at_ns), bounds[0], say_change(change)))
        if not steps:
            self.tell(f"no change of the step time {DIRECTIONS[by]} here")
            return
        _, at_ns, words = min(steps)
        sight.show_stretch(at_ns, at_ns)
        self.tell(words)
        self.redraw()

    def action_filter(self, pattern: str | None = None) -> None:
        """Find the events of a name; without a pattern, ask for it."""
        if pattern is None:
            question = "find: part of a name, or re: and a regular expression; then n and N"
            self.prompt(question, self.action_filter)
        elif not pattern:
            self._matches = None
        else:
            try:
                self._matches = compile_filter(pattern)
            except UsageError as error:
                self.tell(str(error))
            else:
                self.action_match(1)

    def action_match(self, by: int) -> None:
        """Go to the next event whose name matches."""
        sight = self.seen
        if sight.lane is None or self._matches is None:
            self.tell("nothing to look for: press / to enter a name")
            return
        rank, lane = sight.lane
        place = sight.timeline.find(rank, lane, self._matches, sight.at_ns, back=by < 0)
        if place is None:
            self.tell(f"no match {DIRECTIONS[by]} here on r{rank} {lane.label}")
        else:
            self._show_event(Piece(rank, lane, place))

    def look_at(self, place: Place) -> None:
        """Show a rank, a step, a stretch of the rank's clock or a kernel for another screen."""
        sight = self.seen
        if place.rank in sight.timeline.ranks and place.rank is not None:
            sight.open_rank(place.rank, self.canvas.room)
        if place.step is not None:
            self._go_to_step(place.step)
        if place.kernel is not None or place.row is not None:
            self._look_at_kernel(place)
        elif place.start_ns is not None and sight.expanded is not None:
            shift = sight.timeline.shift(sight.expanded)
            end_ns = place.end_ns or place.start_ns
            sight.show_stretch(place.start_ns + shift, end_ns + shift, share=EVENT_SHARE)
            self.redraw()

    def _look_at_kernel(self, place: Place) -> None:
        """Show the kernel of a row, otherwise the first one of its name from the step on.

        `n` and `N` then go to the other kernels of that name.
        """
        sight = self.seen
        rank = sight.expanded
        if rank is None or not sight.timeline.lanes(rank, Group.STREAMS):
            self.tell("no kernels captured on this rank")
            return
        name = place.kernel
        self._matches = None
        if name is not None:
            self._matches = lambda text: text == name
        from_ns = sight.bounds[0] - 1
        if place.step is not None:
            from_ns = sight.at_ns - 1
        for lane in sight.timeline.lanes(rank, Group.STREAMS):
            found = None
            if place.row is not None:
                with_row = np.flatnonzero(lane.level.pieces.rows == place.row).tolist()
                found = next(iter(with_row), None)
            elif self._matches is not None:
                found = sight.timeline.find(rank, lane, self._matches, from_ns)
            if found is not None:
                self._show_event(Piece(rank, lane, found), share=EVENT_SHARE)
                return
        self.tell("that kernel is not on this rank")
