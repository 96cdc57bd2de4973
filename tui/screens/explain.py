"""Explain: the gap between two runs in rows that add up, its causes, and scaling."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from profkit.errors import ProfkitError
from profkit.explain.compared import Compared, Pair, compare_runs
from profkit.explain.explained import Explained
from profkit.explain.kernel_ledger import KernelRow
from profkit.explain.waterfall import Drop, waterfall
from profkit.report.cells_section import cell_columns
from profkit.report.changed_kernels import KERNELS
from profkit.report.code_sections import CHANGES
from profkit.report.ledger_document import DIFFERENCES, compared, explained
from profkit.report.scaling_document import SCALING, limits
from profkit.show import json as show_json
from profkit.show.document import Document, Section, Table, labelled
from profkit.tui.library import Source
from profkit.tui.screens.base import MARK_TWO_RUNS, Place, RunScreen, one_line
from profkit.tui.themes import Palette
from profkit.tui.widgets import explain_draw
from profkit.tui.widgets.document import columns_of, facts_line, verdict_lines
from profkit.tui.widgets.draw import folded
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.run_draw import SCREEN_OF, phase_of
from profkit.tui.widgets.table import VirtualTable

MARGINS: Final = 3
"""Cells of a line that a table does not have, with those of the scroll bar."""

MAX_KERNEL_ROWS: Final = 8
"""Rows of kernels that are in view; the others are reached by moving down."""


class ExplainScreen(RunScreen[Compared]):
    """A pair of runs with its ledger, causes, differences and kernels."""

    NAME = "explain"
    KEY = "7"
    TITLE = "Explain"
    ANSWERS = True
    COMPARES = True
    AUTO_FOCUS = "#rows"
    MAIN_TABLE = "#rows"

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
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012  # Textual's type

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "swap", "swap base and target"),
        Binding("p", "pair(1)", "next pair"),
        Binding("P", "pair(-1)", "previous pair", show=False),
        Binding("c", "code", "lines of the target"),
        Binding("d", "app.show_runs('compare')", "compare with other runs", show=False),
    ]

    _pair = Pair(0, 1)
    """The base and the target, as indices into the runs."""
    _found: Explained | None = None
    """The comparison of the chosen pair, or `None` while it is being built."""
    _phase: str | None = None
    """The phase whose kernels are shown; `None` for all."""

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield VirtualTable(id="scaling", empty="no runs")
            yield Static(classes="title", id="pair")
            yield Lines(id="verdict")
            yield VirtualTable(id="rows", empty="no rows")
            yield Static(classes="title", id="cells_title")
            yield VirtualTable(id="cells", empty="none")
            yield Static("What limits efficiency", classes="title", id="meeting_title")
            yield Lines(id="meeting")
            with Vertical(id="sides"):
                with Vertical(classes="side"):
                    yield Static("Causes", classes="title")
                    yield Lines(id="causes")
                with Vertical(classes="side", id="right"):
                    yield Static("Other differences", classes="title")
                    yield VirtualTable(id="differences", empty="none")
                    yield Lines(id="no_differences")
            yield Static(classes="title", id="lines_title")
            yield VirtualTable(id="lines", empty="none")
            yield Static(classes="title", id="kernels_title")
            yield VirtualTable(id="kernels", empty="none")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys for the next pair if only two runs are compared."""
        if action == "pair":
            return self.view is not None and bool(self.view.scaling)
        return super().check_action(action, parameters)

    @staticmethod
    def build(source: Source) -> Compared:
        if not source.bases:
            raise ProfkitError(MARK_TWO_RUNS)
        return compare_runs([*source.bases, source.trace])

    to_json = staticmethod(lambda view: show_json.document(compared(view, view.pairs)))

    def content(self) -> Any:
        if self.view is None:
            return None
        return show_json.document(compared(self.view, [self._pair]))

    def show(self, view: Compared) -> None:
        self.show_titles()
        self.refresh_bindings()
        self._show_scaling(view)
        self._found = None
        if not view.is_known(self._pair):
            self.tell("reading ..." if self.plain else "reading …")
            build = functools.partial(self._explain, view, self._pair)
            self.run_worker(build, group="pair", thread=True, exclusive=True)
            return
        found = self._found = view.between(self._pair)
        palette = self.palette
        self.frame.run_path = found.case.after.trace.path
        self.draw_head()
        document = explained(found)
        sections = {section.key: section for section in document.sections}
        self.query_one("#verdict", Lines).show(lambda _: _head_lines(document, palette))
        self.show_notes("causes", sections["causes"])
        drops = waterfall(found.ledger)
        columns = explain_draw.waterfall_columns(
            found.ledger, drops, self.app.size.width - MARGINS, plain=self.plain
        )
        self.show_table("rows", columns, [(drop.kind, drop.depth, drop.name) for drop in drops])
        self._show_cells(found, sections["cells"])
        self._show_kernels(found)
        self._show_lines(found)
        differences = found.ledger.differences
        columns = columns_of(Table(DIFFERENCES, differences))
        self.show_table("differences", columns, [each.name for each in differences])
        self.show_notes("no_differences", sections["differences"], style="")
        self.query_one("#differences").display = bool(differences)
        self.query_one("#no_differences").display = not differences

    def _explain(self, view: Compared, pair: Pair) -> None:
        """Compare a pair on a thread, and show it if it is still the chosen one."""
        try:
            view.between(pair)
        except Exception as error:  # noqa: BLE001  # one pair's fault must not end the others
            self.later(self.fail, one_line(error))
            return
        if pair == self._pair:
            self.later(self.tell, "")
            self.later(self.show, view)

    def _show_scaling(self, view: Compared) -> None:
        """Show how the job scales over all runs, and what limits the target of the pair."""
        rows = view.scaling
        for name in ("#scaling", "#meeting", "#pair", "#meeting_title"):
            self.query_one(name).display = bool(rows)
        if not rows:
            return
        columns = columns_of(Table(SCALING, rows))
        self.show_table("scaling", columns, list(range(len(rows))))
        row = rows[max(self._pair)]
        self.show_notes("meeting", Section(table=labelled(list(limits(row)))))
        base, target = rows[self._pair.base].name, rows[self._pair.target].name
        self.show_titles(pair=f"From {base} to {target}")

    def _show_kernels(self, found: Explained, *, moved: bool = False) -> None:
        """Show the kernels or operators that changed most, of the phase under the cursor if any.

        If the cursor has `moved` to a row of the same phase, nothing changes.
        """
        kernels = found.kernels
        row, phase = self.query_one("#rows", VirtualTable).row, None
        if row is not None and kernels:
            phase = phase_of(_top_row(waterfall(found.ledger), row))
        if kernels is None or phase not in kernels.phases:
            phase = None
        if moved and phase == self._phase:
            return
        self._phase = phase
        rows: list[KernelRow] = []
        if kernels is not None:
            title = f"{kernels.noun.capitalize()}s"
            rows += kernels.rows
            if self._phase:
                title += f" of {self._phase}"
                rows = list(kernels.of_phase(self._phase))
            rows.sort(key=lambda row: -abs(row.delta_ns))
            self.show_titles(kernels_title=f"{title} in the captured steps")
        for name in ("#kernels", "#kernels_title"):
            self.query_one(name).display = bool(rows)
        keys = [(row.phase, row.category, row.name) for row in rows]
        self.show_table("kernels", columns_of(Table(KERNELS, rows)), keys, MAX_KERNEL_ROWS)

    def _show_cells(self, found: Explained, section: Section) -> None:
        """Show the parts of the gap that stand out."""
        told = found.told_cells[:MAX_KERNEL_ROWS]
        for part in ("#cells", "#cells_title"):
            self.query_one(part).display = bool(told)
        self.show_titles(cells_title=section.title)
        table = Table(cell_columns(found.cells), told, only_known=True)
        self.show_table("cells", columns_of(table), list(range(len(told))), MAX_KERNEL_ROWS)

    def _show_lines(self, found: Explained) -> None:
        """Show the lines that certainly differ, of the row under the cursor if it has any."""
        changes = found.lines.lines if found.lines else ()
        sure = [change for change in changes if change.is_sure]
        row, title = self.query_one("#rows", VirtualTable).row, "Lines whose time differs"
        if row is not None:
            name = _top_row(waterfall(found.ledger), row)
            own = [change for change in sure if change.phase == (phase_of(name) or name)]
            if own:
                sure, title = own, f"{title}, in {name}"
        for part in ("#lines", "#lines_title"):
            self.query_one(part).display = bool(sure)
        self.show_titles(lines_title=title)
        keys = [(change.phase, change.place) for change in sure]
        self.show_table("lines", columns_of(Table(CHANGES, sure)), keys, MAX_KERNEL_ROWS)

    def on_virtual_table_moved(self, event: VirtualTable.Moved) -> None:
        """Show the kernels and lines of the row that the cursor moved to."""
        if event.table.id == "rows" and self._found is not None:
            self._show_kernels(self._found, moved=True)
            self._show_lines(self._found)

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        """Choose the pair of a run, or open the screen with details of a row."""
        if event.table.id == "scaling" and event.row:
            self._choose(Pair(0, event.row))
        elif event.table.id == "lines":
            self.go("code", Place(phase=event.table.key[0]))
        elif event.table.id == "kernels":
            phase, category, name = event.table.key
            self.go("kernels", Place(kernel=name, category=category, phase=phase_of(phase)))
        elif self._found is not None and event.table.id == "rows":
            name = _top_row(waterfall(self._found.ledger), event.row)
            self.go(SCREEN_OF.get(name, "timeline"), Place(phase=phase_of(name)))

    def action_code(self) -> None:
        """Open the target's lines of code of the row under the cursor."""
        row = self.query_one("#rows", VirtualTable).row
        if self._found is not None and row is not None:
            self.go("code", Place(phase=_top_row(waterfall(self._found.ledger), row)))

    def action_pair(self, by: int) -> None:
        """Choose the next pair in a circle; a swapped pair has the neighbours of the original."""
        if self.view is not None:
            pairs = self.view.pairs
            pair = self._pair
            if pair not in pairs:
                pair = pair.swapped
            self._choose(pairs[(pairs.index(pair) + by) % len(pairs)])

    def action_swap(self) -> None:
        self._choose(self._pair.swapped)

    def _choose(self, pair: Pair) -> None:
        """Show another pair of runs."""
        if self.view is not None:
            self._pair = pair
            self.show(self.view)


def _head_lines(document: Document, palette: Palette) -> Iterator[Text]:
    """Yield the answer, both runs with their speed, the verdict, and its caveats."""
    if document.headline:
        yield folded((document.headline, palette.style("title")))
    for fact in document.facts[:2]:
        yield facts_line([fact], palette)
    yield from verdict_lines(document, palette)


def _top_row(drops: Sequence[Drop], row: int) -> str:
    """Return the name of the ledger's row that a row of the table belongs to."""
    while drops[row].depth:
        row -= 1
    return drops[row].name


SCREEN = ExplainScreen
