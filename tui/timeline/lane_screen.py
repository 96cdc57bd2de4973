"""An open timeline: it is read on threads, drawn, and opened again when the run grows."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from textual import on
from textual.app import ComposeResult
from textual.worker import get_current_worker

from profkit.analysis.timeline.clocks import SAME_CLOCK
from profkit.analysis.timeline.opening import OpenTimeline, open_timeline, still_to_read
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import Request, as_json, view_timeline
from profkit.cache import cache_root
from profkit.errors import ProfkitError
from profkit.tui.library import Source
from profkit.tui.screens.base import RunScreen, one_line
from profkit.tui.timeline.canvas import Canvas
from profkit.tui.timeline.painted import Look
from profkit.tui.timeline.sight import Sight
from profkit.tui.timeline.words import cell_rows, describe_cell

HEADLESS_COLUMNS: Final = 120


class LaneScreen(RunScreen[OpenTimeline]):
    """A screen that shows a timeline and reads its lanes as they come into view."""

    sight: Sight | None = None
    """The part of the timeline that is in view, or `None` before there is a timeline."""
    canvas: Canvas

    def compose_view(self) -> ComposeResult:
        self.canvas = Canvas()
        yield self.canvas

    @staticmethod
    def build(source: Source) -> OpenTimeline:
        try:
            cache = cache_root() / "timeline"
        except ProfkitError:  # without a cache lanes are read again each time
            cache = None
        return open_timeline(source.trace, source.rank, cache, columns=HEADLESS_COLUMNS)

    @staticmethod
    def to_json(view: OpenTimeline) -> Any:
        view.timeline.look_for_changes()
        return as_json(view_timeline(view.timeline, view.first))

    def content(self) -> Any:
        if self.sight is None or self.sight.view is None:
            return None
        return as_json(self.sight.view)

    def row_text(self) -> str:
        return self.canvas.words

    def rows(self) -> Iterable[Sequence[str]]:
        if self.sight is None or self.sight.view is None:
            return ()
        return cell_rows(self.sight.view)

    @property
    def seen(self) -> Sight:
        """The part in view, for keys, which are handled only if a timeline is open."""
        if self.sight is None:
            raise LookupError("no timeline is open yet")
        return self.sight

    def show(self, view: OpenTimeline) -> None:
        prepare = functools.partial(self._prepare, view.timeline)
        if self.sight is None:
            self.sight = Sight(view)
            self.canvas.focus()
            self.refresh_bindings()
            notes = list(view.timeline.problems)
            if view.timeline.clocks != SAME_CLOCK:
                notes.append(view.timeline.clocks)
            self.tell("; ".join(notes))
            self.run_worker(prepare, group="late", thread=True)
        elif self.sight.timeline is not view.timeline:
            before = self.sight.timeline
            self.sight.reopen(view)
            before.forget()
            self.run_worker(prepare, group="late", thread=True)
        self.redraw()

    def _prepare(self, timeline: Timeline) -> None:
        """Find on a thread what the keys look for, and mark the changes of the step time."""
        if self._attempt(timeline.prepare) and timeline.changes:
            self.later(self._draw)

    def on_unmount(self) -> None:
        if self.sight is not None:
            self.sight.timeline.forget()

    @on(Canvas.Resized)
    def redraw(self) -> None:
        """Draw what is in view, and start to read what is missing."""
        self._draw()
        if self.sight is not None and self.sight.view is not None and self.sight.view.pending:
            read = functools.partial(self._read, self.sight.request)
            self.run_worker(read, group="lanes", thread=True, exclusive=True)

    def _read(self, request: Request) -> None:
        """Read on a thread what the view lacks, a rank at a time, until the view changes."""
        worker = get_current_worker()
        for read in still_to_read(self.seen.timeline, request):
            if worker.is_cancelled or not self._attempt(read):
                return
            if not worker.is_cancelled:
                self.later(self._draw)

    def _attempt(self, read: Callable[[], object]) -> bool:
        """Read something on a thread; show the problem and return False if that fails."""
        began = time.thread_time()
        try:
            read()
        except Exception as error:  # noqa: BLE001  # a damaged file must not end the screen
            self.later(self.tell, one_line(error))
            return False
        finally:
            self.frame.has_cost(time.thread_time() - began)
        return True

    def _draw(self) -> None:
        """Draw what is in view and has been read, with the words about the cursor."""
        sight, size = self.sight, self.canvas.size
        if sight is None or not size.width or not self.is_attached:
            return
        view = sight.look(max(1, size.width - self.canvas.label_width), size.height)
        words = ""
        if sight.here is not None:
            words = describe_cell(view, sight.here, sight.column, sight.step)
        for change in view.changes:
            if change.column == sight.column:
                words = change.words
        look = Look(self.palette, self.plain, letters=self.plain or self.app.no_color)
        self.canvas.draw(view, look, column=sight.column, row=sight.row, words=words)
