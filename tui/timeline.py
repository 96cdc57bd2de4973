"""Timeline: ranks over time, with phases, kernels by stream, collectives, and what was sampled below."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.worker import get_current_worker

from profkit.analysis.timeline import SAME_CLOCK, Timeline
from profkit.analysis.timeline_lanes import Group, Lane
from profkit.analysis.timeline_levels import Level
from profkit.analysis.timeline_view import OpenTimeline, Request, Row, TimelineView, Window, as_json, open_timeline, still_to_read, view_timeline
from profkit.errors import ProfkitError, UsageError
from profkit.text import duration, safe_text
from profkit.tui._library import Source
from profkit.tui._screen import Place, RunScreen, one_line
from profkit.tui._table import compile_filter
from profkit.tui._timeline_canvas import Canvas
from profkit.tui._timeline_draw import Look
from profkit.tui._timeline_words import cell_rows, describe_cell, event_lines, parse_step, parse_time
from profkit.workloads._cache import cache_root

HEADLESS_COLUMNS: Final = 120
PAN_SHARE: Final = 8
"""A key moves the view by one part in so many."""

ZOOM: Final = 2.0
WHEEL_ZOOM: Final = 1.25
EVENT_SHARE: Final = 0.2
"""How much of the width an event takes that another screen sent the user to."""

ROWS_SHOWN: Final = (Group.PHASES, Group.DEVICES, Group.COLLECTIVES)


def _cache_folder() -> Path | None:
    """Where lanes are kept; where there is no such place, they are read again each time."""
    try:
        return cache_root() / "timeline"
    except ProfkitError:
        return None


class Details(ModalScreen[None]):
    """All that is known of one event."""

    CSS = """
    Details { align: center middle; }
    Details VerticalScroll { width: auto; max-width: 95%; height: auto; max-height: 95%; padding: 0 2; border: round $accent; background: $panel; }
    Details Static { width: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back", show=False)]

    def __init__(self, lines: Mapping[str, str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        width = max(map(len, self._lines), default=0)
        with VerticalScroll():
            yield Static(Text("\n".join(f"{safe_text(name):>{width}}  {safe_text(value)}" for name, value in self._lines.items())))


class TimelineScreen(RunScreen[OpenTimeline]):
    NAME = "timeline"
    KEY = "2"
    TITLE = "Timeline"

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
        self.shown: TimelineView | None = None
        self._window = Window(0, 1, 1)
        self._expanded: int | None = None
        self._group = Group.PHASES
        self._at_least_ns = 0
        self._top = 0
        self._column = 0
        self._row = 0
        self._key: tuple[int, Group, str] | None = None
        self._at_ns: int | None = None
        self._piece: int | None = None
        self._wanted: Callable[[str], bool] | None = None

    def compose_view(self) -> ComposeResult:
        yield Canvas()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the timeline do nothing before there is one."""
        return self.view is not None or action not in _OWN_ACTIONS

    @staticmethod
    def build(source: Source) -> OpenTimeline:
        return open_timeline(source.trace, source.rank, _cache_folder(), columns=HEADLESS_COLUMNS)

    @staticmethod
    def to_json(view: OpenTimeline) -> Any:
        return as_json(view_timeline(view.timeline, view.first))

    def content(self) -> Any:
        return None if self.shown is None else as_json(self.shown)

    def row_text(self) -> str:
        return self.canvas.words

    def rows(self) -> Iterable[Sequence[str]]:
        return cell_rows(self.shown) if self.shown else ()

    @property
    def canvas(self) -> Canvas:
        return self.query_one(Canvas)

    @property
    def timeline(self) -> Timeline:
        if self.view is None:
            raise LookupError("no timeline is open yet")
        return self.view.timeline

    def show(self, view: OpenTimeline) -> None:
        if self.shown is None:
            self._window, self._expanded = view.first.window, view.first.expanded
            self._group = view.first.group
            self.canvas.focus()
            self.refresh_bindings()
            self.run_worker(lambda: self._attempt(view.timeline.prepare), group="late", thread=True)
            self.tell("; ".join([*view.timeline.problems, *([view.timeline.clocks] if view.timeline.clocks != SAME_CLOCK else [])]))
        self.redraw()

    def on_unmount(self) -> None:
        if self.view is not None:
            self.view.timeline.forget()

    def on_canvas_resized(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Look at what is to be seen now, without waiting for what is still to be read."""
        if self.view is None or not self.canvas.size.width:
            return
        self._window = dataclasses.replace(self._window, columns=self.canvas.columns).zoomed(1.0, self._window.start_ns, self.bounds)
        self._column = self._window.columns // 2 if self.shown is None else min(self._column, self._window.columns - 1)
        request = self._request()
        self.shown = view_timeline(self.timeline, request, wait=False)
        self._row = self._find_row(self.shown)
        if self.shown.pending:
            self.run_worker(lambda: self._read(request), group="lanes", thread=True, exclusive=True)
        self._draw()

    @property
    def bounds(self) -> tuple[int, int]:
        start, end = self.timeline.bounds
        return start, max(end, start + self.canvas.columns)

    def _request(self) -> Request:
        ranks = self.timeline.ranks
        self._top = max(0, min(self._top, len(ranks) - 1))
        return Request(self._window, ranks[self._top : self._top + self.canvas.size.height], self._group, self._expanded, self._at_least_ns)

    def _find_row(self, view: TimelineView) -> int:
        """Where the row is now that the cursor was on; rows come and go while lanes are read."""
        keys = [(row.rank, row.group, row.label) for row in view.rows]
        if self._key in keys:
            return keys.index(self._key)
        rank = self._key[0] if self._key else None
        own = [place for place, (each, _, _) in enumerate(keys) if each == rank]
        return own[0] if own else max(0, min(self._row, len(keys) - 1))

    def _read(self, request: Request) -> None:
        """On a thread: read what the view lacks, a rank at a time, until something else is looked at."""
        worker = get_current_worker()
        for read in still_to_read(self.timeline, request):
            if worker.is_cancelled or not self._attempt(read):
                return
            if not worker.is_cancelled:
                self.later(self._redraw_if_there)

    def _attempt(self, read: Callable[[], object]) -> bool:
        """On a thread: read something. What a damaged file does to it must not take the rest away."""
        try:
            read()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told, and the screen goes on
            self.later(self.tell, one_line(error))
            return False
        return True

    def _redraw_if_there(self) -> None:
        if self.is_attached and self.shown is not None and self.view is not None:
            self.shown = view_timeline(self.timeline, self._request(), wait=False)
            self._row = self._find_row(self.shown)
            self._draw()

    def _draw(self) -> None:
        view, row = self.shown, self.here
        if view is None:
            return
        if row is not None:
            self._key = (row.rank, row.group, row.label)
        words = "" if row is None else describe_cell(view, row, self._column, self._step_at(row.rank))
        letters = self.plain or self.app.no_color
        self.canvas.draw(view, Look(self.palette, self.plain, letters), column=self._column, row=self._row, words=words)

    @property
    def here(self) -> Row | None:
        """The row under the cursor."""
        return self.shown.rows[self._row] if self.shown and self._row < len(self.shown.rows) else None

    def _step_at(self, rank: int) -> int | None:
        steps = self.timeline.steps(rank)
        moment = sum(self._window.cell(self._column)) // 2 if self._at_ns is None else self._at_ns
        place = int(np.searchsorted(steps.start_ns, moment, side="right")) - 1
        return int(steps.number[place]) if place >= 0 and steps.end_ns[place] > moment else None

    def _here(self) -> tuple[int, Lane, Level] | None:
        """The rank and the lane under the cursor, where it has been read."""
        row = self.here
        if row is None or row.note:
            return None
        lane = self.timeline.lane(row.rank, row.group, row.label)
        return (row.rank, lane, self.timeline.level(row.rank, lane, self._at_least_ns)) if lane else None

    @property
    def at_ns(self) -> int:
        """The moment that the cursor is at: where it was sent to, else the beginning of its cell."""
        return self._window.cell(self._column)[0] if self._at_ns is None else self._at_ns

    def _moved(self) -> None:
        """The cursor is not any more where it was sent to."""
        self._at_ns = self._piece = None
        self.redraw()

    def action_pan(self, by: int) -> None:
        self._window = self._window.moved(by * max(1, self._window.length_ns // PAN_SHARE), self.bounds)
        self._moved()

    def action_zoom(self, by: int) -> None:
        self._zoom(ZOOM**by, self.at_ns)

    def _zoom(self, factor: float, about_ns: int) -> None:
        self._window = self._window.zoomed(factor, about_ns, self.bounds)
        column = self._window.column_of(about_ns)
        self._column = self._column if column is None else column
        self.redraw()

    def action_fit(self) -> None:
        at = self.at_ns
        self._window = Window(*self.bounds, self.canvas.columns)
        self._column = self._window.column_of(at) or 0
        self.redraw()

    def action_cursor(self, by: int) -> None:
        if 0 <= self._column + by < self._window.columns:
            self._column += by
            self._moved()
        else:
            self.action_pan(by)

    def action_row(self, by: int) -> None:
        if self.shown is None:
            return
        if 0 <= self._row + by < len(self.shown.rows):
            self._row += by
        elif 0 <= self._top + by < len(self.timeline.ranks):
            self._top += by
        self._key = None
        self._piece = None
        self.redraw()

    def action_rank(self, by: int) -> None:
        """Open the next rank in place of the one that is open."""
        ranks = self.timeline.ranks if self.view else ()
        if len(ranks) < 2:
            self.tell("the run has one rank")
            return
        row = self.here
        at = ranks.index(self._expanded if self._expanded is not None else row.rank if row else ranks[0])
        self._open_rank(ranks[(at + by) % len(ranks)])
        self.redraw()

    def _open_rank(self, rank: int) -> None:
        self._expanded = rank
        place = self.timeline.ranks.index(rank)
        if not self._top <= place < self._top + self.canvas.room:
            self._top = place
        self._key, self._piece = (rank, Group.PHASES, ""), None

    def action_expand(self) -> None:
        row = self.here
        if row is not None:
            self._expanded = None if self._expanded == row.rank else row.rank
            self.redraw()

    def action_rows_shown(self) -> None:
        self._group = ROWS_SHOWN[(ROWS_SHOWN.index(self._group) + 1) % len(ROWS_SHOWN)]
        row = self.here
        self._key = (row.rank, self._group, "") if row else None
        self.tell(f"each rank's row shows its {self._group.value}")
        self.redraw()

    def action_end(self, which: int) -> None:
        span = self.timeline.step_range()
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
        low, high = self.bounds
        if not low <= time_ns < high:
            self.tell(f"the run goes from {duration(low)} to {duration(high)}")
            return
        self._show_stretch(time_ns, time_ns)

    def _go_to_step(self, step: int) -> None:
        found = self.timeline.step_bounds(step)
        if found is None:
            there = self.timeline.step_range()
            self.tell(f"no step {step}" + (f": there are {there[0]} to {there[1]}" if there else ""))
            return
        self._window = Window(*found, self.canvas.columns).around(*found, self.bounds, share=0.8)
        self._show_stretch(*found)
        self.tell(f"step {step}: {duration(found[1] - found[0])}")

    def _show_stretch(self, start_ns: int, end_ns: int) -> None:
        """Bring a stretch into view and the cursor to its beginning; the scale stays, where it fits."""
        if end_ns - start_ns > self._window.length_ns:
            self._window = self._window.around(start_ns, end_ns, self.bounds)
        elif self._window.column_of(start_ns) is None or self._window.column_of(max(start_ns, end_ns - 1)) is None:
            self._window = self._window.moved((start_ns + end_ns - self._window.start_ns - self._window.end_ns) // 2, self.bounds)
        self._column = self._window.column_of(start_ns) or 0
        self._at_ns, self._piece = start_ns, None
        self.redraw()

    def action_event(self, by: int) -> None:
        here = self._here()
        if here is None:
            return
        rank, _, level = here
        piece = level.beside(self.at_ns - self.timeline.shift(rank), by)
        self._show_piece(rank, level, piece, "no event behind this one" if by > 0 else "no event before this one")

    def _show_piece(self, rank: int, level: Level, piece: int | None, otherwise: str) -> None:
        if piece is None:
            self.tell(otherwise)
            return
        shift = self.timeline.shift(rank)
        start, end = int(level.pieces.starts[piece]), int(level.pieces.ends[piece])
        self._show_stretch(start + shift, end + shift)
        self._piece = piece
        self.tell(f"{self.timeline.name(rank, level, piece)}  {duration(end - start)}")

    @property
    def _threshold_ns(self) -> int:
        """What is too short to look for: what is left out, and what would not fill a cell."""
        return max(self._at_least_ns, int(self._window.cell_ns))

    def action_gap(self, by: int) -> None:
        here = self._here()
        if here is None:
            return
        rank, lane, _ = here
        gap = self.timeline.gap(rank, lane, self.at_ns, self._threshold_ns, back=by < 0, at_least_ns=self._at_least_ns)
        if gap is None:
            self.tell(f"no gap of more than {duration(self._threshold_ns)} {'after' if by > 0 else 'before'} here; zoom in to find shorter ones")
            return
        self._show_stretch(*gap)
        self.tell(f"r{rank} {lane.label}: nothing for {duration(gap.end_ns - gap.start_ns)}")

    def action_late(self, by: int) -> None:
        if self.view is None:
            return
        found = self.timeline.late(self.at_ns, self._threshold_ns, back=by < 0)
        if found is None:
            where = "after" if by > 0 else "before"
            self.tell(f"no rank kept others waiting for more than {duration(self._threshold_ns)} {where} here; zoom in to find shorter waits")
            return
        self._open_rank(found.rank)
        self._show_stretch(found.time_ns, found.time_ns)
        self.tell(f"rank {found.rank} came last in step {found.step}: others had waited up to {duration(found.waited_ns)}")

    def action_at_least(self) -> None:
        value = duration(self._at_least_ns).replace(" ", "") if self._at_least_ns else ""
        self.prompt("leave out what is shorter than (20us; empty shows all)", self._set_at_least, value)

    def _set_at_least(self, text: str) -> None:
        try:
            self._at_least_ns = parse_time(text) if text.strip() else 0
        except UsageError as error:
            self.tell(str(error))
            return
        self.tell(f"left out: what is shorter than {duration(self._at_least_ns)}" if self._at_least_ns else "everything is shown")
        self._moved()

    def action_filter(self) -> None:
        self.prompt("find: a part of a name, or re: and a regular expression; then n and N", self._find)

    def _find(self, pattern: str) -> None:
        try:
            self._wanted = compile_filter(pattern) if pattern else None
        except UsageError as error:
            self.tell(str(error))
            return
        if pattern:
            self.action_match(1)

    def action_match(self, by: int) -> None:
        here = self._here()
        if here is None or self._wanted is None:
            self.tell("nothing to look for: / asks for a name")
            return
        rank, lane, level = here
        piece = self.timeline.find(rank, level, self._wanted, self.at_ns, back=by < 0)
        self._show_piece(rank, level, piece, f"no more of that name {'after' if by > 0 else 'before'} here on r{rank} {lane.label}")

    def _selected(self) -> tuple[int, Lane, Level, int] | None:
        """The event that the cursor was sent to, else the one that covers most of its cell."""
        here = self._here()
        if here is None:
            return None
        rank, lane, level = here
        shift = self.timeline.shift(rank)
        start, end = self._window.cell(self._column)
        piece = self._piece if self._piece is not None else level.longest_in(start - shift, end - shift)
        return None if piece is None else (rank, lane, level, piece)

    def action_details(self) -> None:
        selected = self._selected()
        event = self.timeline.event(*selected) if selected else None
        if event is None:
            self.tell("nothing here" if selected is None else "the run's file cannot be read any more")
        else:
            self.app.push_screen(Details(event_lines(event)))

    def action_zoom_event(self) -> None:
        selected = self._selected()
        if selected is None:
            self.tell("nothing here")
            return
        rank, _, level, piece = selected
        shift = self.timeline.shift(rank)
        start, end = int(level.pieces.starts[piece]) + shift, int(level.pieces.ends[piece]) + shift
        self._window = Window(start, end, self.canvas.columns).around(start, end, self.bounds, share=0.8)
        self._show_stretch(start, end)
        self._piece = piece

    def on_canvas_clicked(self, message: Canvas.Clicked) -> None:
        self._column = message.column
        if message.row is not None:
            self._row, self._key = message.row, None
        self._moved()

    def on_canvas_wheeled(self, message: Canvas.Wheeled) -> None:
        if message.sideways:
            self.action_pan(message.by)
            return
        self._at_ns = self._piece = None
        self._column = message.column
        self._zoom(WHEEL_ZOOM**message.by, self.at_ns)

    def look_at(self, place: Place) -> None:
        """Another screen sent the user here: to a rank, a step, a stretch of its clock, or a kernel."""
        if place.rank in self.timeline.ranks and place.rank is not None:
            self._open_rank(place.rank)
        if place.step is not None:
            self._go_to_step(place.step)
        if place.kernel is not None or place.row is not None:
            self._look_at_kernel(place)
        elif place.start_ns is not None and self._expanded is not None:
            shift = self.timeline.shift(self._expanded)
            start, end = place.start_ns + shift, (place.end_ns or place.start_ns) + shift
            self._window = Window(start, max(end, start + 1), self.canvas.columns).around(start, max(end, start + 1), self.bounds, EVENT_SHARE)
            self._show_stretch(start, end)

    def _look_at_kernel(self, place: Place) -> None:
        """The kernel's row in the table, else the first of its name from the step on; `n` and `N` go to its others."""
        rank = self._expanded
        lanes = self.timeline.lanes(rank, Group.STREAMS) if rank is not None else ()
        if rank is None or not lanes:
            self.tell("no kernels captured on this rank")
            return
        name = place.kernel
        self._wanted = None if name is None else lambda text: text == name
        begin = self.at_ns - 1 if place.step is not None else self.bounds[0] - 1
        for lane in lanes:
            piece = self._kernel_in(rank, lane, place.row, begin)
            if piece is not None:
                self._key = (rank, Group.STREAMS, lane.label)
                shift = self.timeline.shift(rank)
                start, end = int(lane.level.pieces.starts[piece]) + shift, int(lane.level.pieces.ends[piece]) + shift
                self._window = Window(start, end, self.canvas.columns).around(start, end, self.bounds, EVENT_SHARE)
                self._show_piece(rank, lane.level, piece, "")
                return
        self.tell("that kernel is not on this rank")

    def _kernel_in(self, rank: int, lane: Lane, row: int | None, from_ns: int) -> int | None:
        if row is not None:
            found = np.flatnonzero(lane.level.pieces.rows == row)
            return int(found[0]) if len(found) else None
        return self.timeline.find(rank, lane.level, self._wanted, from_ns) if self._wanted else None


_OWN_ACTIONS: Final = frozenset(binding.action.partition("(")[0] for binding in TimelineScreen.BINDINGS if isinstance(binding, Binding)) | {"rank", "match"}

SCREEN = TimelineScreen
