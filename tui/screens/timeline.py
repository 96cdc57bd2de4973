"""Timeline: ranks over time, with phases, kernels by stream, collectives, and what was sampled below."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from profkit.analysis.timeline.clocks import SAME_CLOCK
from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.opening import OpenTimeline, open_timeline, still_to_read
from profkit.analysis.timeline.view import Request, as_json, view_timeline
from profkit.cache import cache_root
from profkit.errors import ProfkitError, UsageError
from profkit.text import duration
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen, one_line
from profkit.tui.timeline.canvas import Canvas
from profkit.tui.timeline.details import Details
from profkit.tui.timeline.draw import Look
from profkit.tui.timeline.sight import Piece, Sight
from profkit.tui.timeline.words import cell_rows, describe_cell, event_lines, parse_step, parse_time
from profkit.tui.widgets.table import compile_filter

HEADLESS_COLUMNS: Final = 120
ZOOM: Final = 2.0
WHEEL_ZOOM: Final = 1.25
EVENT_SHARE: Final = 0.2
"""How much of the width an event takes that another screen sent the user to."""

STEP_SHARE: Final = 0.8
"""The same of a step that was asked for, and of an event that is to fill the width."""


def _cache_folder() -> Path | None:
    """Where lanes are kept; where there is no such place, they are read again each time."""
    try:
        return cache_root() / "timeline"
    except ProfkitError:
        return None


class TimelineScreen(RunScreen[OpenTimeline]):
    NAME = "timeline"
    KEY = "2"
    TITLE = "Timeline"
    KEEPS_UP = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h,a", "pan(-1)", "earlier", show=False),
        Binding("right,l,d", "pan(1)", "later", show=False),
        Binding("up,k", "row(-1)", "row above", show=False),
        Binding("down,j", "row(1)", "row below", show=False),
        Binding("plus", "zoom(-1)", "closer", key_display="+"),
        Binding("equals_sign", "zoom(-1)", "closer", show=False, key_display="="),
        Binding("w", "zoom(-1)", "closer", show=False),
        Binding("minus", "zoom(1)", "farther", key_display="-"),
        Binding("s", "zoom(1)", "farther", show=False),
        Binding("0", "fit", "all", show=True),
        Binding("shift+left", "cursor(-1)", "cursor left", show=False),
        Binding("shift+right", "cursor(1)", "cursor right", show=False),
        Binding("pageup", "pan(-8)", "a screen earlier", show=False),
        Binding("pagedown", "pan(8)", "a screen later", show=False),
        Binding("home", "end(-1)", "first step", show=False),
        Binding("end", "end(1)", "last step", show=False),
        Binding("g", "go_to", "go to"),
        Binding("slash", "filter", "find", key_display="/"),
        Binding("f", "filter", "find", show=False),
        Binding("comma", "event(-1)", "event before", show=False, key_display=","),
        Binding("full_stop", "event(1)", "next event", show=False, key_display="."),
        Binding("greater_than_sign", "gap(1)", "next gap", key_display=">"),
        Binding("less_than_sign", "gap(-1)", "gap before", show=False, key_display="<"),
        Binding("L", "late(1)", "late rank"),
        Binding("H", "late(-1)", "late rank before", show=False),
        Binding("m", "at_least", "shortest", show=False),
        Binding("v", "rows_shown", "phases, kernels or collectives of each rank", show=False),
        Binding("x,space", "expand", "open or close the rank", show=False),
        Binding("z", "zoom_event", "fill the width with the event", show=False),
        Binding("enter", "details", "details"),
    ]

    def __init__(self, place: Place | None = None) -> None:
        super().__init__(place)
        self.sight: Sight | None = None
        self._wanted: Callable[[str], bool] | None = None

    def compose_view(self) -> ComposeResult:
        yield Canvas()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the timeline do nothing before there is one."""
        return self.sight is not None or action not in _OWN_ACTIONS

    @staticmethod
    def build(source: Source) -> OpenTimeline:
        return open_timeline(source.trace, source.rank, _cache_folder(), columns=HEADLESS_COLUMNS)

    @staticmethod
    def to_json(view: OpenTimeline) -> Any:
        return as_json(view_timeline(view.timeline, view.first))

    def content(self) -> Any:
        return None if self.sight is None or self.sight.view is None else as_json(self.sight.view)

    def row_text(self) -> str:
        return self.canvas.words

    def rows(self) -> Iterable[Sequence[str]]:
        return cell_rows(self.sight.view) if self.sight and self.sight.view else ()

    @property
    def canvas(self) -> Canvas:
        return self.query_one(Canvas)

    @property
    def seen(self) -> Sight:
        """What is in sight; keys are answered only where there is something."""
        if self.sight is None:
            raise LookupError("no timeline is open yet")
        return self.sight

    def show(self, view: OpenTimeline) -> None:
        if self.sight is None:
            self.sight = Sight(view)
            self.canvas.focus()
            self.refresh_bindings()
            self.tell(
                "; ".join(
                    [
                        *view.timeline.problems,
                        *([view.timeline.clocks] if view.timeline.clocks != SAME_CLOCK else []),
                    ]
                )
            )
            self._prepare(view)
        elif self.sight.timeline is not view.timeline:
            before = self.sight.timeline
            self.sight.reopen(view)
            before.forget()
            self._prepare(view)
        self.redraw()

    def _prepare(self, view: OpenTimeline) -> None:
        self.run_worker(lambda: self._attempt(view.timeline.prepare), group="late", thread=True)

    def on_unmount(self) -> None:
        if self.sight is not None:
            self.sight.timeline.forget()

    def on_canvas_resized(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Look at what is to be seen now, without waiting for what is still to be read."""
        if self.sight is None or not self.canvas.size.width:
            return
        self.sight.fit_into(self.canvas.columns, self.canvas.size.height)
        if self.sight.look().pending:
            request = self.sight.request()
            self.run_worker(lambda: self._read(request), group="lanes", thread=True, exclusive=True)
        self._draw()

    def _read(self, request: Request) -> None:
        """On a thread: read what the view lacks, a rank at a time, until something else is looked at."""
        worker = get_current_worker()
        for read in still_to_read(self.seen.timeline, request):
            if worker.is_cancelled or not self._attempt(read):
                return
            if not worker.is_cancelled:
                self.later(self._redraw_if_there)

    def _attempt(self, read: Callable[[], object]) -> bool:
        """On a thread: read something. What a damaged file does to it must not take the rest away."""
        began = time.thread_time()
        try:
            read()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told, and the screen goes on
            self.later(self.tell, one_line(error))
            return False
        finally:
            self.frame.has_cost(time.thread_time() - began)
        return True

    def _redraw_if_there(self) -> None:
        if self.is_attached and self.sight is not None and self.sight.view is not None:
            self.sight.look()
            self._draw()

    def _draw(self) -> None:
        sight = self.seen
        if sight.view is None:
            return
        words = (
            ""
            if sight.here is None
            else describe_cell(sight.view, sight.here, sight.column, sight.step)
        )
        letters = self.plain or self.app.no_color
        self.canvas.draw(
            sight.view,
            Look(self.palette, self.plain, letters),
            column=sight.column,
            row=sight.row,
            words=words,
        )

    def action_pan(self, by: int) -> None:
        self.seen.pan(by)
        self.redraw()

    def action_zoom(self, by: int) -> None:
        self.seen.zoom(ZOOM**by)
        self.redraw()

    def action_fit(self) -> None:
        self.seen.fit()
        self.redraw()

    def action_cursor(self, by: int) -> None:
        self.seen.move_cursor(by)
        self.redraw()

    def action_row(self, by: int) -> None:
        self.seen.move_row(by)
        self.redraw()

    def action_rank(self, by: int) -> None:
        if self.sight is None or len(self.sight.timeline.ranks) < 2:
            self.tell("the run has one rank")
            return
        self.sight.step_ranks(by, self.canvas.room)
        self.redraw()

    def action_expand(self) -> None:
        self.seen.expand()
        self.redraw()

    def action_rows_shown(self) -> None:
        self.seen.show_next_group()
        self.tell(f"each rank's row shows its {self.seen.group.value}")
        self.redraw()

    def action_end(self, which: int) -> None:
        span = self.seen.timeline.step_range()
        if span is not None:
            self._go_to_step(span[0 if which < 0 else 1])

    def action_go_to(self) -> None:
        self.prompt("go to a step (120), or a time (12.5s, 300ms)", self._go_to)

    def _go_to(self, text: str) -> None:
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
        if not low <= time_ns < high:
            self.tell(f"the run goes from {duration(low)} to {duration(high)}")
            return
        self.seen.show_stretch(time_ns, time_ns)
        self.redraw()

    def _go_to_step(self, step: int) -> None:
        found = self.seen.timeline.step_bounds(step)
        if found is None:
            there = self.seen.timeline.step_range()
            self.tell(
                f"no step {step}" + (f": there are {there[0]} to {there[1]}" if there else "")
            )
            return
        self.seen.show_stretch(*found, share=STEP_SHARE)
        self.tell(f"step {step}: {duration(found[1] - found[0])}")
        self.redraw()

    def action_event(self, by: int) -> None:
        sight = self.seen
        if sight.lane is not None:
            rank, lane = sight.lane
            place = lane.level.beside(sight.at_ns - sight.timeline.shift(rank), by)
            self._show_piece(
                rank,
                lane,
                place,
                "no event behind this one" if by > 0 else "no event before this one",
            )

    def _show_piece(
        self,
        rank: int,
        lane: Lane,
        place: int | None,
        otherwise: str,
        *,
        share: float | None = None,
    ) -> None:
        if place is None:
            self.tell(otherwise)
            return
        piece = Piece(rank, lane, place)
        self.seen.show_piece(piece, share=share)
        start, end = self.seen.stretch_of(piece)
        self.tell(f"{self.seen.timeline.name(rank, lane, place)}  {duration(end - start)}")
        self.redraw()

    def action_gap(self, by: int) -> None:
        sight = self.seen
        if sight.lane is None:
            return
        rank, lane = sight.lane
        gap = sight.timeline.gap(rank, lane, sight.at_ns, sight.threshold_ns, back=by < 0)
        if gap is None:
            self.tell(
                f"no gap of more than {duration(sight.threshold_ns)} {'after' if by > 0 else 'before'} here; zoom in to find shorter ones"
            )
            return
        sight.show_stretch(*gap)
        self.tell(f"r{rank} {lane.label}: nothing for {duration(gap.end_ns - gap.start_ns)}")
        self.redraw()

    def action_late(self, by: int) -> None:
        sight = self.seen
        found = sight.timeline.late(sight.at_ns, sight.threshold_ns, back=by < 0)
        if found is None:
            where = "after" if by > 0 else "before"
            self.tell(
                f"no rank kept others waiting for more than {duration(sight.threshold_ns)} {where} here; zoom in to find shorter waits"
            )
            return
        sight.open_rank(found.rank, self.canvas.room)
        sight.show_stretch(found.time_ns, found.time_ns)
        self.tell(
            f"rank {found.rank} came last in step {found.step}: others had waited up to {duration(found.waited_ns)}"
        )
        self.redraw()

    def action_at_least(self) -> None:
        shortest_ns = self.seen.at_least_ns
        self.prompt(
            "leave out what is shorter than (20us; empty shows all)",
            self._leave_out,
            duration(shortest_ns).replace(" ", "") if shortest_ns else "",
        )

    def _leave_out(self, text: str) -> None:
        try:
            shortest_ns = parse_time(text) if text.strip() else 0
        except UsageError as error:
            self.tell(str(error))
            return
        self.seen.leave_out(shortest_ns)
        self.tell(
            f"left out: what is shorter than {duration(shortest_ns)}"
            if shortest_ns
            else "everything is shown"
        )
        self.redraw()

    def action_filter(self) -> None:
        self.prompt(
            "find: a part of a name, or re: and a regular expression; then n and N", self._find
        )

    def _find(self, pattern: str) -> None:
        try:
            self._wanted = compile_filter(pattern) if pattern else None
        except UsageError as error:
            self.tell(str(error))
            return
        if pattern:
            self.action_match(1)

    def action_match(self, by: int) -> None:
        sight = self.seen
        if sight.lane is None or self._wanted is None:
            self.tell("nothing to look for: / asks for a name")
            return
        rank, lane = sight.lane
        place = sight.timeline.find(rank, lane, self._wanted, sight.at_ns, back=by < 0)
        self._show_piece(
            rank,
            lane,
            place,
            f"no more of that name {'after' if by > 0 else 'before'} here on r{rank} {lane.label}",
        )

    def action_details(self) -> None:
        piece = self.seen.piece
        event = self.seen.timeline.event(*piece) if piece else None
        if event is None:
            self.tell("nothing here" if piece is None else "the run's file cannot be read any more")
        else:
            self.app.push_screen(Details(event_lines(event)))

    def action_zoom_event(self) -> None:
        piece = self.seen.piece
        if piece is None:
            self.tell("nothing here")
        else:
            self.seen.show_piece(piece, share=STEP_SHARE)
            self.redraw()

    def on_canvas_clicked(self, message: Canvas.Clicked) -> None:
        if self.sight is not None:
            self.sight.point_at(message.column, message.row)
            self.redraw()

    def on_canvas_wheeled(self, message: Canvas.Wheeled) -> None:
        if self.sight is None:
            return
        if message.sideways:
            self.sight.pan(message.by)
        else:
            self.sight.point_at(message.column, None)
            self.sight.zoom(WHEEL_ZOOM**message.by)
        self.redraw()

    def look_at(self, place: Place) -> None:
        """Another screen sent the user here: to a rank, a step, a stretch of its clock, or a kernel."""
        sight = self.seen
        if place.rank in sight.timeline.ranks and place.rank is not None:
            sight.open_rank(place.rank, self.canvas.room)
        if place.step is not None:
            self._go_to_step(place.step)
        if place.kernel is not None or place.row is not None:
            self._look_at_kernel(place)
        elif place.start_ns is not None and sight.expanded is not None:
            shift = sight.timeline.shift(sight.expanded)
            sight.show_stretch(
                place.start_ns + shift, (place.end_ns or place.start_ns) + shift, share=EVENT_SHARE
            )
            self.redraw()

    def _look_at_kernel(self, place: Place) -> None:
        """The kernel's row in the table, else the first of its name from the step on; `n` and `N` go to its others."""
        sight = self.seen
        rank = sight.expanded
        lanes = sight.timeline.lanes(rank, Group.STREAMS) if rank is not None else ()
        if rank is None or not lanes:
            self.tell("no kernels captured on this rank")
            return
        name = place.kernel
        self._wanted = None if name is None else lambda text: text == name
        begin = sight.at_ns - 1 if place.step is not None else sight.bounds[0] - 1
        for lane in lanes:
            found = self._kernel_in(rank, lane, place.row, begin)
            if found is not None:
                self._show_piece(rank, lane, found, "", share=EVENT_SHARE)
                return
        self.tell("that kernel is not on this rank")

    def _kernel_in(self, rank: int, lane: Lane, row: int | None, from_ns: int) -> int | None:
        if row is not None:
            found = np.flatnonzero(lane.level.pieces.rows == row)
            return int(found[0]) if len(found) else None
        return self.seen.timeline.find(rank, lane, self._wanted, from_ns) if self._wanted else None


_OWN_ACTIONS: Final = frozenset(
    binding.action.partition("(")[0]
    for binding in TimelineScreen.BINDINGS
    if isinstance(binding, Binding)
) | {"rank", "match"}

SCREEN = TimelineScreen
