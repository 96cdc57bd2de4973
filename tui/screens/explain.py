"""Explain: the way from one run's step to another's, in rows that add up, with causes and what else differs; of more runs, how they scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from profkit.errors import ProfkitError
from profkit.explain.compared import Compared, Pair, compare_runs
from profkit.explain.explained import Explained
from profkit.explain.waterfall import Drop, waterfall
from profkit.report import ledger_json
from profkit.tui.library import Source
from profkit.tui.screens.base import Place, RunScreen, one_line
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.explain_draw import (
    cause_lines,
    difference_columns,
    kernel_columns,
    scaling_columns,
    scaling_lines,
    verdict_lines,
    waterfall_columns,
)
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.run_draw import screen_of
from profkit.tui.widgets.table import VirtualTable
from profkit.vocab import PHASES, Phase

FALL_WIDTH: Final = 24
NARROW_FALL_WIDTH: Final = 14
NARROW: Final = 110
MOST_KERNELS: Final = 8
"""Rows of kernels that are in view at once; the others are reached by moving down."""


class ExplainScreen(RunScreen[Compared]):
    NAME = "explain"
    KEY = "7"
    TITLE = "Explain"
    COMPARES = True
    AUTO_FOCUS = "#rows"

    DEFAULT_CSS = """
    ExplainScreen #sides { layout: vertical; height: auto; }
    ExplainScreen.-wide #sides { layout: horizontal; }
    ExplainScreen .side { height: auto; width: 1fr; }
    ExplainScreen VirtualTable { scrollbar-size: 0 0; }
    ExplainScreen .title { margin-top: 1; }
    ExplainScreen VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; }
    ExplainScreen #right { padding-left: 0; }
    ExplainScreen.-wide #right { padding-left: 2; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012  # Textual has it on the instance as well

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "swap", "swap base and target"),
        Binding("p", "pair(1)", "next pair"),
        Binding("P", "pair(-1)", "pair before", show=False),
        Binding("d", "compare", "compare with other runs", show=False),
    ]

    def __init__(self, place: Place | None = None) -> None:
        super().__init__(place)
        self._pair = Pair(0, 1)
        self._phase = ""

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield VirtualTable(id="scaling", empty="no runs")
            yield Static(classes="title", id="pair")
            yield Lines(id="verdict")
            yield VirtualTable(id="rows", empty="no rows")
            yield Static("What holds it back", classes="title", id="meeting-title")
            yield Lines(id="meeting")
            with Vertical(id="sides"):
                with Vertical(classes="side"):
                    yield Static("Causes", classes="title")
                    yield Lines(id="causes")
                with Vertical(classes="side", id="right"):
                    yield Static("What else differs", classes="title")
                    yield VirtualTable(
                        id="differences",
                        empty="nothing: every recorded knob, version and variable is the same",
                    )
            yield Static(classes="title", id="kernels-title")
            yield VirtualTable(id="kernels", empty="none")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Between two runs there is nothing to step through."""
        return action != "pair" or (self.view is not None and bool(self.view.scaling))

    @staticmethod
    def build(source: Source) -> Compared:
        if not source.bases:
            raise ProfkitError("this compares runs: mark two or more in the list (Space), then d")
        return compare_runs([*source.bases, source.trace])

    @staticmethod
    def to_json(view: Compared) -> Any:
        return ledger_json.compared(view, view.pairs)

    def content(self) -> Any:
        return None if self.view is None else ledger_json.compared(self.view, [self._pair])

    def main_table(self) -> VirtualTable:
        return (
            self.focused
            if isinstance(self.focused, VirtualTable)
            else self.query_one("#rows", VirtualTable)
        )

    @property
    def explained(self) -> Explained | None:
        """What lies between the chosen pair; `None` while it is worked out."""
        return (
            self.view.between(self._pair)
            if self.view is not None and self.view.is_known(self._pair)
            else None
        )

    def show(self, view: Compared) -> None:
        for title in self.query(".title").results(Static):
            self._entitle(title, str(title.content))
        self.refresh_bindings()
        self._show_scaling(view)
        found = self.explained
        if found is None:
            self.tell("reading ..." if self.plain else "reading …")
            self.run_worker(
                lambda: self._work_out(view, self._pair), group="pair", thread=True, exclusive=True
            )
            return
        self.frame.turn_to(found.case.after.trace.path)
        self.draw_head()
        self.query_one("#verdict", Lines).show(lambda _: list(verdict_lines(found, self.palette)))
        self.query_one("#causes", Lines).show(lambda _: list(cause_lines(found, self.palette)))
        self._show_rows(found)
        self._show_kernels(found)
        self._show_differences(found)

    def _entitle(self, title: Static, words: str) -> None:
        title.update(line([(words, self.palette.style("title"))]))

    def _work_out(self, view: Compared, pair: Pair) -> None:
        """On a thread: what lies between two sides, which is then shown where it is still wanted."""
        try:
            view.between(pair)
        except Exception as error:  # noqa: BLE001  # what a damaged file or a fault does to one pair must not take the others away
            self.later(self.fail, one_line(error))
        else:
            self.later(self._show_worked_out, pair)

    def _show_worked_out(self, pair: Pair) -> None:
        if self.view is not None and pair == self._pair:
            self.tell("")
            self.show(self.view)

    def _show_scaling(self, view: Compared) -> None:
        """How the job scales over all runs, and what holds back the target of the pair below."""
        table, lines, title = (
            self.query_one("#scaling", VirtualTable),
            self.query_one("#meeting", Lines),
            self.query_one("#pair", Static),
        )
        for widget in (table, lines, title, self.query_one("#meeting-title")):
            widget.display = bool(view.scaling)
        if not view.scaling:
            return
        rows = view.scaling
        table.styles.height = len(rows) + 1
        table.show_rows(list(scaling_columns(rows)), keys=range(len(rows)))
        lines.show(lambda _: list(scaling_lines(rows[max(self._pair)], self.palette)))
        self._entitle(title, f"From {rows[self._pair.base].name} to {rows[self._pair.target].name}")

    def _show_rows(self, found: Explained) -> None:
        drops = waterfall(found.ledger)
        width = FALL_WIDTH if self.app.size.width >= NARROW else NARROW_FALL_WIDTH
        table = self.query_one("#rows", VirtualTable)
        table.styles.height = len(drops) + 1
        table.show_rows(
            list(waterfall_columns(found.ledger, drops, width, plain=self.plain)),
            keys=[(drop.kind, drop.depth, drop.name) for drop in drops],
        )

    def _show_kernels(self, found: Explained) -> None:
        """What changed most among the kernels, or operators, where both runs have captured some: of the row under the cursor, else of all."""
        kernels = found.kernels
        self._phase = self._phase_under_cursor(found)
        rows = (
            sorted(
                kernels.of_phase(self._phase) if self._phase else kernels.rows,
                key=lambda row: -abs(row.delta_ns),
            )
            if kernels
            else []
        )
        table, title = (
            self.query_one("#kernels", VirtualTable),
            self.query_one("#kernels-title", Static),
        )
        table.display = title.display = bool(rows)
        self._entitle(
            title,
            f"{kernels.noun.capitalize() if kernels else ''}s{f' of {self._phase}' if self._phase else ''} in the captured steps",
        )
        table.styles.height = min(len(rows), MOST_KERNELS) + 1
        table.show_rows(
            list(kernel_columns(rows)), keys=[(row.phase, row.category, row.name) for row in rows]
        )

    def _phase_under_cursor(self, found: Explained) -> str:
        """The phase that the row under the cursor is about, where kernels of it were captured."""
        row = self.query_one("#rows", VirtualTable).row
        phase = "" if row is None else _phase_of(_outer(waterfall(found.ledger), row))
        return phase if found.kernels and phase in found.kernels.phases else ""

    def _show_differences(self, found: Explained) -> None:
        differences = found.ledger.differences
        table = self.query_one("#differences", VirtualTable)
        table.styles.height = max(1, len(differences)) + 1
        table.show_rows(
            list(difference_columns(differences)), keys=[each.name for each in differences]
        )

    def on_virtual_table_moved(self, event: VirtualTable.Moved) -> None:
        """The kernels below are those of the row under the cursor."""
        found = self.explained
        if (
            event.table.id == "rows"
            and found is not None
            and self._phase_under_cursor(found) != self._phase
        ):
            self._show_kernels(found)

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        """The way from the base to a run of the table; of a row, what is behind it in the target."""
        found = self.explained
        if event.table.id == "scaling" and event.row:
            self._choose(Pair(0, event.row))
        elif event.table.id == "kernels":
            phase, category, name = event.table.key
            self.go(
                "kernels",
                Place(kernel=name, category=category, phase=phase if phase in PHASES else None),
            )
        elif found is not None and event.table.id == "rows":
            name = _outer(waterfall(found.ledger), event.row)
            phase = _phase_of(name)
            self.go(screen_of(name), Place(phase=phase if phase in PHASES else None))

    def action_pair(self, by: int) -> None:
        """The next of the pairs in a circle; from one that was swapped, its neighbours."""
        if self.view is not None:
            pairs = self.view.pairs
            at = pairs.index(self._pair if self._pair in pairs else self._pair.swapped)
            self._choose(pairs[(at + by) % len(pairs)])

    def action_swap(self) -> None:
        if self.view is not None:
            self._choose(self._pair.swapped)

    def _choose(self, pair: Pair) -> None:
        self._pair = pair
        if self.view is not None:
            self.show(self.view)

    def action_compare(self) -> None:
        self.frame.compare()


def _outer(drops: Sequence[Drop], row: int) -> str:
    """The row that a part belongs to."""
    return next(drop.name for drop in reversed(drops[: row + 1]) if not drop.depth)


def _phase_of(row: str) -> str:
    return Phase.DATA.value if row == "input" else row


SCREEN = ExplainScreen
