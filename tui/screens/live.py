"""Live: a run while it trains, read so rarely that it costs the job 1 % of a processor."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from profkit.analysis.losses import MEANINGS, TRAINS
from profkit.analysis.views.live import LiveView, build_live_view
from profkit.clock import wall_ns
from profkit.errors import ProfkitError
from profkit.hangs.account import say_standstill
from profkit.report.words import live_parts_words, role_of
from profkit.show.document import Column, Table
from profkit.show.figures import NS, SHARE, interval_range, plain
from profkit.text import duration, percent, plural, safe_text, significant
from profkit.trace.tail import RunTail
from profkit.tui.library import Source
from profkit.tui.screens.base import RunScreen, one_line
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import Column as ShownColumn
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import bar, folded, line
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.step_strip import strip
from profkit.tui.widgets.table import VirtualTable
from profkit.vocab import RunState

BAR_WIDTH: Final = 24
MIN_INTERVAL_S: Final = 1.0
MAX_PROCESSOR_SHARE: Final = 0.01
"""Reading a run may take this share of a processor; a costly look delays the next one."""

LEAST_LOSS: Final = 0.02
"""A part that takes less of the latest steps is no loss worth a line."""

NO_NEWS: Final = (
    "no news for far longer than a step takes: the job is evaluating, saving or hanging"
)

_STATE_ROLES: Final = {
    RunState.RUNNING: "accent",
    RunState.COMPLETE: "good",
    RunState.ABORTED: "bad",
}


PARTS: Final = (
    Column("", "part", lambda part: part.name, role=role_of),
    Column("", "per step", lambda part: part.step_ns, NS),
    Column("", "share", lambda part: part.share, SHARE),
)


class LiveScreen(RunScreen[LiveView]):
    """The speed, the latest steps and the state of a run that trains."""

    NAME = "live"
    KEY = "8"
    TITLE = "Live"
    ANSWERS = True

    DEFAULT_CSS = """
    LiveScreen VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; }
    LiveScreen VirtualTable { scrollbar-size: 0 0; }
    LiveScreen .title { margin-top: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", key_display="Space")
    ]

    _tail: RunTail | None = None
    """The reader of the run, which remembers what it has read."""
    _paused = False
    _spent_s = 0.0
    """The processor time of the process when the latest look began."""

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Lines(id="pulse")
            yield Static("Step times", classes="title")
            yield Lines(id="strip")
            yield Static("Where the latest steps go", classes="title")
            yield VirtualTable(id="parts", empty="no steps yet")
            yield Lines(id="behind")

    @staticmethod
    def build(source: Source) -> LiveView:
        """Read the whole run, which takes several looks if it is long."""
        tail = RunTail(source.trace.path)
        while tail.look().behind:
            pass
        name = safe_text(source.trace.path.resolve().name)
        return build_live_view(name, tail.look(), wall_ns())

    def ask_for_view(self) -> None:
        """Read what is new in the run on a thread, unless it is paused."""
        run = self.frame.run_path
        if self._paused or not self.is_attached:
            return
        if run is None:
            self.fail("no run is open")
            return
        if self._tail is None or self._tail.path != run:
            self._tail = RunTail(run)
        self._spent_s = time.process_time()
        read = functools.partial(self._look, run, self._tail)
        self.run_worker(read, group=self.NAME, thread=True, exclusive=True)

    def _look(self, run: Path, tail: RunTail) -> None:
        """Read the run on a thread, and show it."""
        try:
            view = build_live_view(safe_text(run.resolve().name), tail.look(), wall_ns())
            if view.stalled:
                view = dataclasses.replace(view, standstill=say_standstill(run))
        except ProfkitError as error:
            self.later(self.fail, one_line(error))
        else:
            self.later(self.take, view)
            self.later(self.call_after_refresh, self._wait, view)

    def _wait(self, view: LiveView) -> None:
        """Start the timer for the next look, so late that the last one's cost is spread."""
        if view.state is RunState.RUNNING and not self._paused:
            spent_s = time.process_time() - self._spent_s
            self.set_timer(max(MIN_INTERVAL_S, spent_s / MAX_PROCESSOR_SHARE), self.ask_for_view)

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.tell("")
        if self._paused:
            self.tell("paused; press Space to continue")
        self.ask_for_view()

    def show(self, view: LiveView) -> None:
        palette, plain, height = self.palette, self.plain, self.app.size.height
        self.show_titles()
        self.query_one("#pulse", Lines).show(lambda _: _pulse_lines(view, palette))
        self.query_one("#strip", Lines).show(
            lambda width: strip(view.points, palette, width, height, plain=plain)
        )
        furthest = max((place.step for place in view.places), default=0)
        behind: list[str] = []
        for place in view.places:
            if place.step < furthest - 1:
                behind.append(f"rank {place.rank} at step {place.step:,}")
        words = [("behind: ", palette.style("bad")), (", ".join(behind), None)]
        self.query_one("#behind", Lines).show(lambda _: [line(words)] if behind else [])
        columns = columns_of(Table(PARTS, view.parts))
        draw_bar = functools.partial(bar, width=BAR_WIDTH, plain=plain)
        names = [part.name for part in view.parts]
        roles = list(map(role_of, names))
        columns.append(ShownColumn("", columns[2].values, draw_bar, searched=False, roles=roles))
        self.show_table("parts", columns, names)


def _pulse_lines(view: LiveView, palette: Palette) -> Iterator[Text]:
    """Yield the state of the run, its latest step, and its speed."""
    title, dim, bad = palette.style("title"), palette.style("dim"), palette.style("bad")
    ranks = view.world
    if view.ranks_followed != view.world_size:
        ranks = f"{view.ranks_followed} of {ranks} followed"
    words = f"  {view.workload} · {view.framework} · {ranks}"
    if view.why:
        words += f"  {view.why}"
    yield line([(view.state.value, palette.style(_STATE_ROLES[view.state])), (words, None)])
    if view.newest_step is None:
        yield line([("no step has ended yet", dim)])
        return
    words = ""
    if view.age_ns is not None and view.state is RunState.RUNNING:
        words += f", {duration(view.age_ns, 2)} ago"
    if view.loss is not None:
        words += f"   loss {significant(view.loss, 5)}"
    yield line([(f"step {view.newest_step:,}", title), (words, None)])
    speed = "number of samples not known"
    if view.throughput.value > 0:
        speed = f"{significant(view.throughput.value, 4)} samples/s"
    interval = "   "
    if view.throughput.judged:
        interval = f"  {interval_range(view.throughput, plain)}   "
    yield line(
        [
            (speed, title),
            (interval, dim),
            (f"step {duration(view.step_ns.value, 4)}", title),
            (f"   over the latest {plural(view.recent_steps, 'step')}", dim),
        ]
    )
    yield from _loss_lines(view, palette)
    for words in live_parts_words(view):
        yield folded((words, dim))
    stall = view.standstill or (NO_NEWS if view.stalled else "")
    if stall:
        yield folded((stall, bad))


def _loss_lines(view: LiveView, palette: Palette) -> Iterator[Text]:
    """Yield the part of the latest steps that trains nothing and takes most of them."""
    lost = [part for part in view.parts if part.name not in TRAINS and part.share > LEAST_LOSS]
    if lost:
        largest = max(lost, key=lambda part: part.share)
        what = MEANINGS.get(largest.name, largest.name)
        words = f"{what}: {duration(largest.step_ns)}, {percent(largest.share)}"
        yield line([("largest loss  ", palette.style("unsure")), (words, None)])


SCREEN = LiveScreen
