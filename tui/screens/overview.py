"""Overview: one run's throughput, where a step goes, what of it trains nothing, and how far to believe that."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from profkit.analysis.views.run import RunView, build_run_view
from profkit.report import run_json
from profkit.text import duration, percent
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen
from profkit.tui.widgets import run_draw as _run_draw
from profkit.tui.widgets.draw import bar, line
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.table import Column, VirtualTable
from profkit.vocab import Phase

BAR_WIDTH = 16


class OverviewScreen(RunScreen[RunView]):
    NAME = "overview"
    KEY = "1"
    TITLE = "Overview"
    KEEPS_UP = True

    DEFAULT_CSS = """
    OverviewScreen #sides { layout: vertical; height: auto; }
    OverviewScreen.-wide #sides { layout: horizontal; }
    OverviewScreen .side { height: auto; width: 1fr; }
    OverviewScreen .title { margin-top: 1; }
    OverviewScreen VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; }
    OverviewScreen #parts { scrollbar-size: 0 0; }
    OverviewScreen #right { padding-left: 0; }
    OverviewScreen.-wide #right { padding-left: 2; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012  # Textual has it on the instance as well

    BINDINGS: ClassVar[list[BindingType]] = [Binding("d", "compare", "compare with another run")]

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Lines(id="headline")
            yield Lines(id="bar")
            with Vertical(id="sides"):
                with Vertical(classes="side"):
                    yield Static("What of a step trains nothing", classes="title")
                    yield Lines(id="findings")
                    yield Static("Where a step goes", classes="title")
                    yield VirtualTable(id="parts", empty="nothing says where a step goes")
                with Vertical(classes="side", id="right"):
                    yield Static("Step times", classes="title")
                    yield Lines(id="strip")
                    yield Static("How far to believe this", classes="title")
                    yield Lines(id="words")

    @staticmethod
    def build(source: Source) -> RunView:
        return build_run_view(source.trace, source.ceilings)

    @staticmethod
    def to_json(view: RunView) -> Any:
        return run_json.run(view)

    def show(self, view: RunView) -> None:
        palette, plain, height = self.palette, self.plain, self.app.size.height
        for title in self.query(".title").results(Static):
            title.update(line([(str(title.content), palette.style("title"))]))
        self._lines("headline").show(lambda _: _run_draw.headline(view, palette))
        self._lines("bar").show(
            lambda width: _run_draw.bar_of_step(view, palette, width, plain=plain)
        )
        self._lines("findings").show(lambda _: list(_run_draw.findings(view.losses, palette)))
        self._lines("strip").show(
            lambda width: _run_draw.strip(view.points, palette, width, height, plain=plain)
        )
        self._lines("words").show(lambda _: _run_draw.words(view, palette))
        self._show_parts(view)

    def _lines(self, name: str) -> Lines:
        return self.query_one(f"#{name}", Lines)

    def _show_parts(self, view: RunView) -> None:
        rows = _run_draw.part_rows(view)
        shares = [_run_draw.share_of(part) for _, part, _ in rows]
        table = self.query_one("#parts", VirtualTable)
        table.styles.height = len(rows) + 1
        table.show_rows(
            [
                Column(
                    "part",
                    [name for name, _, _ in rows],
                    stretches=True,
                    role=lambda name: (
                        "dim" if name.startswith(("hidden", " ")) else _run_draw.role_of(name)
                    ),
                ),
                Column("a step", [part.step_ns.value for _, part, _ in rows], duration, right=True),
                Column("share", shares, percent, right=True),
                Column("95 % interval", [_run_draw.interval(part) for _, part, _ in rows]),
                Column(
                    "",
                    shares,
                    lambda share: bar(share, BAR_WIDTH, plain=self.plain),
                    searched=False,
                ),
            ],
            keys=[name for name, _, _ in rows],
        )

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        """The screen that says more of the part under the cursor."""
        if self.view is not None:
            name = _part_of(self.view, event.row)
            phase = Phase.DATA.value if name == "input" else name
            self.go(
                _run_draw.screen_of(name),
                Place(phase=phase if phase in {each.value for each in Phase} else None),
            )

    def action_compare(self) -> None:
        """Go to the list of runs with this one marked."""
        self.frame.compare()


def _part_of(view: RunView, row: int) -> str:
    """The part that a row of the table belongs to: itself, or the one that it is inside of."""
    names = [name for name, _, _ in _run_draw.part_rows(view)]
    outer = [name for name in names[: row + 1] if not name.startswith(" ")]
    return outer[-1]


SCREEN = OverviewScreen
