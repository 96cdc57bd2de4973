"""Runs: which there are, how fast each is, and what is slow in it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from profkit.analysis.estimate import Estimate
from profkit.analysis.views.runs import (
    NO_FIGURES,
    RunFigures,
    RunHead,
    RunRow,
    arrange_runs,
    list_runs,
)
from profkit.report import run_json, runs_text
from profkit.text import percent, plural, safe_text, significant
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.figures import figures_of
from profkit.tui.widgets.frame import FrameScreen
from profkit.tui.widgets.table import Column, VirtualTable

LOOK_EVERY_S: Final = 2.0
_STATE_ROLES: Final = {
    "complete": "good",
    "running": "accent",
    "aborted": "bad",
    "unreadable": "bad",
}


class RunsScreen(FrameScreen):
    """The runs of a folder."""

    TITLE = "Runs"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "mark", "mark", key_display="Space"),
        Binding("d", "compare", "compare"),
        Binding("g", "group", "group", show=False),
        Binding("r", "look_again", "read the folder again", show=False),
    ]

    def __init__(self, folder: Path, *, at: Path | None = None, marked: Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._at = at
        self._first_mark = marked
        self._heads: tuple[RunHead, ...] = ()
        self._figures: dict[Path, RunFigures] = {}
        self._rows: tuple[RunRow, ...] = ()
        self._grouped = False
        self._problem = ""
        self._stale = False

    def compose_view(self) -> ComposeResult:
        yield VirtualTable(
            empty=f"no runs in {self._folder}; make one with 'profkit trace WORKLOAD'"
        )

    def on_mount(self) -> None:
        self._look()
        self.table.focus()
        if self._at is not None:
            self._select(self._at)
        self.mark(self._first_mark)
        self.set_interval(LOOK_EVERY_S, self._look)

    @property
    def table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def head(self) -> Text:
        read = sum(1 for head in self._heads if head.path in self._figures)
        reading = f", figures of {read:,} read" if read < len(self._heads) else ""
        return line(
            [
                (" profkit ", self.palette.style("title")),
                (f" {plural(len(self._heads), 'run')} in {self._folder}{reading}", None),
            ]
        )

    def _look(self) -> None:
        """Read the manifests again; what has changed since gets its figures read on a thread."""
        heads = list_runs(self._folder)
        if heads == self._heads and self._rows:
            return
        known = {head.path: head for head in self._heads}
        stale = [head.path for head in heads if known.get(head.path) != head]
        self._heads = heads
        for path in stale:
            self._figures.pop(path, None)
        self._show()
        missing = [head.path for head in heads if head.path not in self._figures]
        if missing:
            self.call_after_refresh(
                self._if_there, self._start_reading, missing
            )  # the list is seen first

    def _start_reading(self, paths: list[Path]) -> None:
        self.run_worker(
            functools.partial(self._read_figures, paths),
            group="figures",
            thread=True,
            exclusive=True,
        )

    def _read_figures(self, paths: list[Path]) -> None:
        """On a thread, the newest run first."""
        worker = get_current_worker()
        for path in paths:
            if worker.is_cancelled:
                return
            found = figures_of(path)
            if not worker.is_cancelled:
                self.later(self._take, path, found)

    def _take(self, path: Path, found: RunFigures) -> None:
        """Keep the figures of a run; those that come before the next frame are shown together."""
        self._figures[path] = found
        if not self._stale:
            self._stale = True
            self.call_after_refresh(self._if_there, self._show)

    def _show(self) -> None:
        self._stale = False
        self._rows = rows = arrange_runs(self._heads, self._figures, grouped=self._grouped)
        heads = [row.head for row in rows]
        figures = [row.figures or NO_FIGURES for row in rows]
        self.table.show_rows(
            [
                Column("run", [head.name for head in heads], stretches=True),
                Column("ranks", [head.ranks for head in heads], right=True, searched=False),
                Column(
                    "samples/s",
                    [each.throughput.value for each in figures],
                    functools.partial(significant, digits=4),
                    right=True,
                    searched=False,
                ),
                Column(
                    "+/-",
                    [_half_width(each.throughput) for each in figures],
                    percent,
                    right=True,
                    searched=False,
                ),
                Column(
                    "effic",
                    [None if row.efficiency is None else row.efficiency.value for row in rows],
                    percent,
                    right=True,
                    searched=False,
                ),
                Column(
                    "top finding",
                    [
                        None if row.figures is None else runs_text.finding(row.figures)
                        for row in rows
                    ],
                    role=_finding_role,
                ),
                Column(
                    "state",
                    [_state(row) for row in rows],
                    role=lambda state: _STATE_ROLES.get(state, "bad"),
                    widest=30,
                ),
                Column("workload", [head.workload for head in heads]),
                Column("with", [head.framework for head in heads]),
                Column("prec", [head.precision for head in heads]),
                Column("batch", [head.batch_size for head in heads], right=True, searched=False),
            ],
            keys=[head.path for head in heads],
        )
        self.draw_head()

    def _select(self, run: Path) -> None:
        for head in self._heads:
            if head.path.resolve() == run.resolve():
                self.table.select(head.path)

    def mark(self, run: Path | None) -> None:
        """Mark a run, and ask for another one."""
        if run is not None:
            self.table.marked = {
                head.path for head in self._heads if head.path.resolve() == run.resolve()
            }
            self._select(run)
            self.tell("marked; mark the runs to compare it with (Space), then d")

    def open_selected(self, screen: str = "overview") -> None:
        """Open the run under the cursor; where it is one of those that are marked, with these to compare."""
        path = self.table.key
        if isinstance(path, Path):
            marked = self._marked()
            self.frame.open_run(
                path, compared=marked if len(marked) > 1 and path in marked else (), screen=screen
            )

    def _marked(self) -> list[Path]:
        """The runs that are marked, the oldest first; of more than two, those on the fewest ranks first."""
        marked = [head for head in reversed(self._heads) if head.path in self.table.marked]
        return [
            head.path
            for head in (
                sorted(marked, key=lambda head: head.ranks or 0) if len(marked) > 2 else marked
            )
        ]

    def on_virtual_table_moved(self, event: VirtualTable.Moved) -> None:
        """Say what is wrong with the run under the cursor."""
        row = None if event.row is None else self._rows[event.row]
        problem = (
            "" if row is None else row.head.problem or (row.figures.problem if row.figures else "")
        )
        if problem != self._problem:
            self._problem = problem
            self.tell(problem)

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        self.open_selected()

    def action_mark(self) -> None:
        self.table.toggle_mark()
        count = len(self._marked())
        self.tell(
            f"{plural(count, 'run')} marked" + ("; d compares them" if count > 1 else "")
            if count
            else ""
        )

    def action_compare(self) -> None:
        marked = self._marked()
        if len(marked) < 2:
            self.tell(
                f"mark two runs or more with Space, then d; {plural(len(marked), 'run')} marked now"
            )
            return
        self.frame.open_run(marked[-1], compared=marked, screen="explain")

    def action_group(self) -> None:
        """Runs of one kind together, or the newest first."""
        self._grouped = not self._grouped
        self.table.sort_by("", descending=False)
        self._show()
        self.tell("runs of one kind stand together" if self._grouped else "the newest first")

    def action_look_again(self) -> None:
        self._heads = ()
        self._figures.clear()
        self._look()

    def content(self) -> object:
        return run_json.runs(self._rows)

    @property
    def stem(self) -> str:
        return f"runs-{safe_text(self._folder.name)}"


def _half_width(found: Estimate) -> float | None:
    """Half the interval as a share of the value."""
    return (
        None
        if found.low is None or found.high is None
        else (found.high - found.low) / 2 / found.value
    )


def _finding_role(finding: str) -> str:
    return "dim" if finding in {"none", "-"} else "unsure"


def _state(row: RunRow) -> str:
    return (
        "no figures"
        if row.figures and row.figures.problem and not row.head.problem
        else row.head.state
    )
