"""Explain: the way from one run's step to another's, in rows that add up, with causes and what else differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from profkit.analysis.ledger import Verdict
from profkit.analysis.waterfall import Drop, waterfall
from profkit.ceilings import load_ceilings
from profkit.errors import ProfkitError
from profkit.report import ledger_json, ledger_text
from profkit.report.explained import Explained, explain
from profkit.text import amount, duration
from profkit.tui._draw import line
from profkit.tui._library import Source
from profkit.tui._lines import Lines
from profkit.tui._run_draw import role_of, screen_of
from profkit.tui._screen import Place, RunScreen
from profkit.tui._table import Column, VirtualTable
from profkit.tui._themes import Palette
from profkit.vocab import PHASES, Phase

FALL_WIDTH, NARROW_FALL_WIDTH = 24, 14
NARROW = 110
MOST_KERNELS = 8
"""Rows of kernels that are in view at once; the others are reached by moving down."""

_ROLES = {Verdict.REGRESSION: "bad", Verdict.IMPROVEMENT: "good", Verdict.NEUTRAL: "dim", Verdict.CANNOT_JUDGE: "unsure"}


class ExplainScreen(RunScreen[Explained]):
    NAME = "explain"
    KEY = "7"
    TITLE = "Explain"
    PAIR = True

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

    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "swap", "swap base and target"), Binding("d", "compare", "compare with another run", show=False)]

    def compose_view(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Lines(id="verdict")
            yield VirtualTable(id="rows", empty="no rows")
            with Vertical(id="sides"):
                with Vertical(classes="side"):
                    yield Static("Causes", classes="title")
                    yield Lines(id="causes")
                with Vertical(classes="side", id="right"):
                    yield Static("What else differs", classes="title")
                    yield VirtualTable(id="differences", empty="nothing: every recorded knob, version and variable is the same")
            yield Static("Kernels in the captured steps", classes="title", id="kernels-title")
            yield VirtualTable(id="kernels", empty="none")

    @staticmethod
    def build(source: Source) -> Explained:
        if source.base is None:
            raise ProfkitError("this takes two runs: mark two in the list (Space), then d")
        return explain(source.base, source.trace, (load_ceilings(source.base.manifest.environment), source.ceilings))

    @staticmethod
    def to_json(view: Explained) -> Any:
        return ledger_json.explained(view)

    def show(self, view: Explained) -> None:
        palette = self.palette
        for title in self.query(".title").results(Static):
            title.update(line([(str(title.content), palette.style("title"))]))
        self.query_one("#verdict", Lines).show(lambda _: list(_verdict(view, palette)))
        self.query_one("#causes", Lines).show(lambda _: list(_causes(view, palette)))
        self._show_rows(view)
        self._show_kernels(view)
        self._show_differences(view)

    def _show_rows(self, view: Explained) -> None:
        ledger = view.ledger
        drops = waterfall(ledger)
        factor = ledger.samples_per_step
        low, high = _span(drops)
        width = FALL_WIDTH if self.app.size.width >= NARROW else NARROW_FALL_WIDTH
        table = self.query_one("#rows", VirtualTable)
        table.styles.height = len(drops) + 1
        cells = [ledger_text.row_cells(ledger, drop.row, _name(drop), factor) for drop in drops]
        table.show_rows(
            [
                Column("where the time goes", [_name(drop) for drop in drops], stretches=True, role=_name_role, widest=34),
                Column("base", _unless("target", drops, [drop.row.base.value * factor for drop in drops]), duration, right=True),
                Column("target", _unless("base", drops, [drop.row.target.value * factor for drop in drops]), duration, right=True),
                Column("difference", _unless("base", drops, [drop.row.delta.value * factor for drop in drops]), ledger_text.signed, right=True),
                Column("", drops, functools.partial(_fall, low=low, high=high, width=width, plain=self.plain), searched=False, role=_fall_role, widest=width),
                Column("verdict", _unless("base", drops, [cell[-1] for cell in cells]), role=lambda word: _ROLES[Verdict(word)] if word else "dim"),
                Column("95 % interval", _unless("base", drops, [cell[-2] for cell in cells])),
            ],
            keys=[(drop.kind, drop.depth, drop.name) for drop in drops],
        )

    def _show_kernels(self, view: Explained) -> None:
        """What changed most among the kernels, or operators, where both runs have captured some."""
        rows = sorted(view.kernels.rows, key=lambda row: -abs(row.delta_ns)) if view.kernels else []
        table = self.query_one("#kernels", VirtualTable)
        table.display = self.query_one("#kernels-title").display = bool(rows)
        table.styles.height = min(len(rows), MOST_KERNELS) + 1
        table.show_rows(
            [
                Column("name", [row.name for row in rows], stretches=True, widest=48),
                Column("phase", [row.phase for row in rows], role=role_of),
                Column("base", [row.base_ns for row in rows], duration, right=True),
                Column("target", [row.target_ns for row in rows], duration, right=True),
                Column("difference", [row.delta_ns for row in rows], ledger_text.signed, right=True),
                Column("calls before", [row.base_calls for row in rows], _calls, right=True),
                Column("calls", [row.target_calls for row in rows], _calls, right=True),
                Column("category", [row.category for row in rows]),
            ],
            keys=[(row.phase, row.category, row.name) for row in rows],
        )

    def _show_differences(self, view: Explained) -> None:
        found = view.ledger.differences
        table = self.query_one("#differences", VirtualTable)
        table.styles.height = max(1, len(found)) + 1
        table.show_rows(
            [
                Column("name", [each.name for each in found], stretches=True),
                Column("base", [each.base for each in found], widest=24),
                Column("target", [each.target for each in found], widest=24),
                Column("can affect", [each.rows for each in found], widest=40),
            ],
            keys=[each.name for each in found],
        )

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        """What is behind the row under the cursor, in the target."""
        if event.table.id == "kernels":
            phase, category, name = event.table.key
            self.go("kernels", Place(kernel=name, category=category, phase=phase if phase in PHASES else None))
        elif self.view is not None and event.table.id == "rows":
            drops = waterfall(self.view.ledger)
            name = _outer(drops, event.row)
            phase = Phase.DATA.value if name == "input" else name
            self.go(screen_of(name), Place(phase=phase if phase in PHASES else None))

    def action_swap(self) -> None:
        self.frame.swap_runs()
        self.view = None
        self.draw_head()
        self.ask_for_view()

    def action_compare(self) -> None:
        self.frame.compare()


def _verdict(view: Explained, palette: Palette) -> Iterator[Text]:
    ledger, case = view.ledger, view.case
    sides = (("base  ", case.base_name, ledger.total.base, case.base), ("target", case.target_name, ledger.total.target, case.target))
    for side, name, own, manifest in sides:
        pace = ledger_text.pace(ledger, own, manifest.world_size)
        yield line([(f"{side}  ", palette.style("dim")), (f"{name}  ", palette.style("title")), (pace, Style.null())])
    words = [(f"{ledger.verdict.value}: ", palette.style(_ROLES[ledger.verdict]) + Style(bold=True)), (ledger_text.verdict_words(ledger), Style.null())]
    yield _folded(line(words))
    for caveat in view.caveats:
        yield _folded(line([("mind: ", palette.style("unsure")), (caveat, Style.null())]))


def _causes(view: Explained, palette: Palette) -> Iterator[Text]:
    if not view.findings:
        yield line([("no cause stands out of the noise", palette.style("dim"))])
    for number, found in enumerate(view.findings, start=1):
        yield _folded(line([(f"{number} {found.kind}: ", palette.style("bad")), (ledger_text.finding_cost(found), palette.style("title"))]))
        yield _folded(line([(f"  {found.evidence}", palette.style("dim"))]))
        if found.remedy:
            yield _folded(line([("  try: ", palette.style("good")), (found.remedy, Style.null())]))


def _folded(text: Text) -> Text:
    text.no_wrap, text.overflow = False, "fold"
    return text


def _unless(kind: str, drops: Sequence[Drop], values: Sequence[Any]) -> list[Any]:
    """The values, without that of the total at one end: there the other side has none."""
    return [None if drop.kind == kind else value for drop, value in zip(drops, values, strict=True)]


def _calls(count: float) -> str:
    return amount(count)


def _name(drop: Drop) -> str:
    return {"base": "base, in all", "target": "target, in all", "overlapped": f"(overlapped) {drop.name}"}.get(drop.kind, "  " * drop.depth + drop.name)


def _name_role(name: str) -> str:
    if name.endswith(", in all"):
        return "title"
    return "dim" if name.startswith(("(", " ")) else role_of(name)


def _span(drops: Sequence[Drop]) -> tuple[float, float]:
    """What the falls are drawn in: from a little below the lowest to the highest place that they reach."""
    places = [place for drop in drops if drop.kind == "row" for place in (drop.start_ns, drop.end_ns)]
    places += [drop.end_ns for drop in drops if drop.kind in {"base", "target"}]
    finite = [place for place in places if math.isfinite(place)] or [0.0]
    margin = (max(finite) - min(finite)) / 8
    return max(0.0, min(finite) - margin) if min(finite) >= 0 else min(finite) - margin, max(finite)


def _fall(drop: Drop, *, low: float, high: float, width: int, plain: bool) -> str:
    """From where a row begins to where it ends: what is added is solid, what is saved is hatched."""
    if drop.kind == "overlapped" or not high > low or not (math.isfinite(drop.start_ns) and math.isfinite(drop.end_ns)):
        return ""
    start = low if drop.kind in {"base", "target"} else drop.start_ns
    left, right = (round((place - low) / (high - low) * width) for place in sorted((start, drop.end_ns)))
    if left == right:
        return " " * min(left, width - 1) + ("|" if plain else "▏")
    more, less, whole = ("+", "-", "=") if plain else ("█", "▒", "━")
    mark = whole if drop.kind in {"base", "target"} else more if drop.end_ns > drop.start_ns else less
    return " " * left + mark * (right - left)


def _fall_role(drop: Drop) -> str:
    if drop.kind != "row":
        return "dim"
    return "bad" if drop.end_ns > drop.start_ns else "good"


def _outer(drops: Sequence[Drop], row: int) -> str:
    """The row that a part belongs to."""
    return next(drop.name for drop in reversed(drops[: row + 1]) if not drop.depth)


SCREEN = ExplainScreen
