"""Live: a run while it trains, looked at no more often than costs the job a hundredth of a processor."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from profkit.analysis.views.live import LiveView, build_live_view
from profkit.clock import wall_ns
from profkit.errors import ProfkitError
from profkit.text import duration, percent, plural, safe_text, significant
from profkit.trace.tail import RunTail
from profkit.tui.library import Source
from profkit.tui.screens.base import RunScreen, one_line
from profkit.tui.themes import Palette
from profkit.tui.widgets import run_draw as _run_draw
from profkit.tui.widgets.draw import bar, line
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.table import Column, VirtualTable
from profkit.vocab import RunState

BAR_WIDTH: Final = 24
SHORTEST_WAIT_S: Final = 1.0
MOST_OF_A_PROCESSOR: Final = 0.01


def look(run: Path, tail: RunTail) -> LiveView:
    """What is new in a run, added to what was known; a look at a long run takes several steps until it has caught up."""
    return build_live_view(safe_text(run.resolve().name), tail.look(), wall_ns())


class LiveScreen(RunScreen[LiveView]):
    NAME = "live"
    KEY = "8"
    TITLE = "Live"

    DEFAULT_CSS = """
    LiveScreen VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; }
    LiveScreen VirtualTable { scrollbar-size: 0 0; }
    LiveScreen .title { margin-top: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", key_display="Space")
    ]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tail: RunTail | None = None
        self._paused = False
        self._spent_s = 0.0

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Lines(id="pulse")
            yield Static("Step times", classes="title")
            yield Lines(id="strip")
            yield Static("Where the latest steps go", classes="title")
            yield VirtualTable(id="parts", empty="no steps yet")
            yield Lines(id="places")

    @staticmethod
    def build(source: Source) -> LiveView:
        tail = RunTail(source.trace.path)
        while tail.look().behind:
            pass
        return look(source.trace.path, tail)

    def ask_for_view(self) -> None:
        """Look at the run on a thread, with what is known kept between looks."""
        run = self.frame.run_path
        if run is None:
            self.fail("no run is open")
            return
        if self._tail is None or self._tail.path != run:
            self._tail = RunTail(run)
        self._spent_s = time.process_time()
        self.run_worker(
            functools.partial(self._look, run, self._tail),
            group=self.NAME,
            thread=True,
            exclusive=True,
        )

    def _look(self, run: Path, tail: RunTail) -> None:
        try:
            view = look(run, tail)
        except ProfkitError as error:
            self.later(self.fail, one_line(error))
        else:
            self.later(self._taken, view)

    def _taken(self, view: LiveView) -> None:
        self.take(view)
        self.call_after_refresh(self._wait, view)

    def _wait(self, view: LiveView) -> None:
        """The next look, when this one's cost has been spread over enough time."""
        if view.state is RunState.RUNNING and not self._paused:
            spent_s = time.process_time() - self._spent_s
            self.set_timer(max(SHORTEST_WAIT_S, spent_s / MOST_OF_A_PROCESSOR), self._again)

    def _again(self) -> None:
        if self.is_attached and not self._paused:
            self.ask_for_view()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.tell("paused; Space goes on" if self._paused else "")
        self._again()

    def show(self, view: LiveView) -> None:
        palette, plain, height = self.palette, self.plain, self.app.size.height
        for title in self.query(".title").results(Static):
            title.update(line([(str(title.content), palette.style("title"))]))
        self.query_one("#pulse", Lines).show(lambda _: list(_pulse(view, palette)))
        self.query_one("#strip", Lines).show(
            lambda width: _run_draw.strip(view.points, palette, width, height, plain=plain)
        )
        self.query_one("#places", Lines).show(lambda _: list(_places(view, palette)))
        table = self.query_one("#parts", VirtualTable)
        table.styles.height = max(1, len(view.parts)) + 1
        table.show_rows(
            [
                Column("part", [part.name for part in view.parts], role=_run_draw.role_of),
                Column("a step", [part.step_ns for part in view.parts], duration, right=True),
                Column("share", [part.share for part in view.parts], percent, right=True),
                Column(
                    "",
                    [part.share for part in view.parts],
                    lambda share: bar(share, BAR_WIDTH, plain=plain),
                    searched=False,
                ),
            ],
            keys=[part.name for part in view.parts],
        )


def _pulse(view: LiveView, palette: Palette) -> Iterator[Text]:
    """Whether the run moves, and how fast."""
    state = {RunState.RUNNING: "accent", RunState.COMPLETE: "good", RunState.ABORTED: "bad"}[
        view.state
    ]
    ranks = (
        plural(view.world_size, "rank")
        if view.ranks_followed == view.world_size
        else f"{view.ranks_followed} of {plural(view.world_size, 'rank')} followed"
    )
    yield line(
        [
            (view.state.value, palette.style(state)),
            (f"  {view.workload} · {view.framework} · {ranks}", Style.null()),
            (view.why and f"  {view.why}", Style.null()),
        ]
    )
    if view.newest_step is None:
        yield line([("no step has ended yet", palette.style("dim"))])
        return
    age = (
        ""
        if view.age_ns is None or view.state is not RunState.RUNNING
        else f", {duration(view.age_ns, 2)} ago"
    )
    loss = "" if view.loss is None else f"   loss {significant(view.loss, 5)}"
    yield line(
        [(f"step {view.newest_step:,}", palette.style("title")), (f"{age}{loss}", Style.null())]
    )
    speed = (
        "samples are not known"
        if not view.throughput.value > 0
        else f"{significant(view.throughput.value, 4)} samples/s"
    )
    interval = (
        ""
        if view.throughput.low is None or view.throughput.high is None
        else f"  {_run_draw.interval_of(view.throughput)}"
    )
    words = [
        (speed, palette.style("title")),
        (f"{interval}   ", palette.style("dim")),
        (f"step {duration(view.step_ns.value, 4)}", palette.style("title")),
    ]
    yield line(
        [*words, (f"   over the latest {plural(view.recent_steps, 'step')}", palette.style("dim"))]
    )
    if view.stalled:
        yield line(
            [
                (
                    "no news for far longer than a step takes: it evaluates, saves, or hangs",
                    palette.style("bad"),
                )
            ]
        )


def _places(view: LiveView, palette: Palette) -> Iterator[Text]:
    """The ranks that are behind the one that is furthest."""
    furthest = max((place.step for place in view.places), default=0)
    behind = [place for place in view.places if place.step < furthest - 1]
    if behind:
        words = ", ".join(f"rank {place.rank} at step {place.step:,}" for place in behind)
        yield line([("behind: ", palette.style("bad")), (words, Style.null())])


SCREEN = LiveScreen
