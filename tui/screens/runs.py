"""Runs: the runs of a folder, with the speed and the costliest loss of each."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Static
from textual.worker import get_current_worker

from profkit.analysis.views.runs import RunFigures, RunHead, RunRow, arrange_runs, list_runs
from profkit.report.runs_document import RUNS, runs
from profkit.show.document import Table
from profkit.show.json import document
from profkit.text import plural, safe_text
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.figures import figures_of
from profkit.tui.widgets.table import VirtualTable
from profkit.tui.widgets.table_screen import TableScreen

LIST_INTERVAL_S: Final = 2.0
"""The folder is listed again after this time, so that new runs appear."""


class RunsScreen(TableScreen):
    """The runs of a folder."""

    TITLE = "Runs"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "mark", "mark", key_display="Space"),
        Binding("d", "compare", "compare"),
        Binding("g", "group", "group", show=False),
        Binding("r", "read_again", "read the folder again", show=False),
    ]

    def __init__(self, folder: Path, *, at: Path | None = None, mark: bool = False) -> None:
        super().__init__()
        self.stem = f"runs-{safe_text(folder.name)}"
        self._folder = folder
        self._at = at
        self._mark_first = mark
        self._heads: tuple[RunHead, ...] = ()
        self._figures: dict[Path, RunFigures] = {}
        self._rows: tuple[RunRow, ...] = ()
        self._grouped = False
        self._problem = ""
        """The problem of the run under the cursor, as the status line shows it."""
        self._stale = False
        """True if figures have arrived since the list was drawn."""

    def on_mount(self) -> None:
        self.table.empty = "no runs; make one with 'profkit run -- COMMAND'"
        self.set_look()
        self._look()
        self.table.focus()
        if self._at is not None:
            self.go_to(self._at, mark=self._mark_first)
        self.set_interval(LIST_INTERVAL_S, self._look)

    def draw_head(self) -> None:
        missing = [head for head in self._heads if head.path not in self._figures]
        words = f" {plural(len(self._heads), 'run')} in {self._folder}"
        if missing:
            words += f", figures of {len(self._heads) - len(missing):,} read"
        head = line([(" profkit ", self.palette.style("title")), (words, None)])
        self.query_one("#frame-head", Static).update(head)

    def _look(self) -> None:
        """Read the manifests again; the figures of changed runs are read on a thread."""
        heads = list_runs(self._folder)
        if heads == self._heads and self._rows:
            return
        known = {head.path: head for head in self._heads}
        self._heads = heads
        for head in heads:
            if known.get(head.path) != head:
                self._figures.pop(head.path, None)
        self._show()
        missing = [head.path for head in heads if head.path not in self._figures]
        if missing:
            # After the refresh, so that the list is on the screen first.
            read = functools.partial(self._read_figures, missing)
            start = functools.partial(
                self.run_worker, read, group="figures", thread=True, exclusive=True
            )
            self.call_after_refresh(self.if_shown, start)

    def _read_figures(self, paths: list[Path]) -> None:
        """Read the figures of runs on a thread, the newest run first."""
        worker = get_current_worker()
        for path in paths:
            if worker.is_cancelled:
                return
            found = figures_of(path)
            if not worker.is_cancelled:
                self.later(self._take, path, found)

    def _take(self, path: Path, found: RunFigures) -> None:
        """Keep the figures of a run; all that arrive before the next frame are shown together."""
        self._figures[path] = found
        if not self._stale:
            self._stale = True
            self.call_after_refresh(self.if_shown, self._show)

    def _show(self) -> None:
        """Show the runs with the figures that are known."""
        self._stale = False
        self._rows = arrange_runs(self._heads, self._figures, grouped=self._grouped)
        name, *others = columns_of(Table(RUNS, self._rows))
        columns = [dataclasses.replace(name, cut_in_middle=True), *others]
        self.table.show_rows(columns, keys=[row.head.path for row in self._rows])
        self.draw_head()

    def go_to(self, run: Path, *, mark: bool) -> None:
        """Put the cursor on a run; with `mark`, mark it alone and ask for another one."""
        if mark:
            self.table.marked = set()
            self.tell("marked; mark the runs to compare it with (Space), then press d")
        for head in self._heads:
            if head.path.resolve() == run.resolve():
                self.table.select(head.path)
                if mark:
                    self.table.marked.add(head.path)

    @on(VirtualTable.Opened)
    def open_selected(
        self, event: VirtualTable.Opened | None = None, *, screen: str = "overview"
    ) -> None:
        """Open the run under the cursor; if it is marked, with the marked runs to compare."""
        path = self.table.key
        if isinstance(path, Path):
            compared = self._marked()
            if len(compared) < 2 or path not in compared:
                compared = []
            self.frame.open_run(path, compared=compared, screen=screen)

    def _marked(self) -> list[Path]:
        """Return the marked runs: two by age, the oldest first; more by their number of ranks."""
        marked = [head for head in reversed(self._heads) if head.path in self.table.marked]
        if len(marked) > 2:
            marked.sort(key=lambda head: head.ranks or 0)
        return [head.path for head in marked]

    def on_virtual_table_moved(self, event: VirtualTable.Moved) -> None:
        """Show the problem of the run under the cursor."""
        problem = ""
        if event.row is not None:
            row = self._rows[event.row]
            problem = row.head.problem
            if not problem and row.figures:
                problem = row.figures.problem
        if problem != self._problem:
            self._problem = problem
            self.tell(problem)

    def action_mark(self) -> None:
        """Mark or unmark the run under the cursor."""
        table = self.table
        if table.row is not None:
            table.marked ^= {table.key}
            table.refresh()
        count = len(self._marked())
        if not count:
            self.tell("")
        elif count == 1:
            self.tell("1 run marked")
        else:
            self.tell(f"{count:,} runs marked; press d to compare them")

    def action_compare(self) -> None:
        """Compare the marked runs."""
        marked = self._marked()
        if len(marked) < 2:
            count = plural(len(marked), "run")
            self.tell(f"mark two runs or more with Space, then press d; {count} marked now")
            return
        self.frame.open_run(marked[-1], compared=marked, screen="explain")

    def action_group(self) -> None:
        """Put runs of one kind together, or the newest run first."""
        self._grouped = not self._grouped
        self.table.sort_by("", descending=False)
        self._show()
        if self._grouped:
            self.tell("runs of one kind are together")
        else:
            self.tell("the newest run first")

    def action_read_again(self) -> None:
        """Read the folder and all figures again."""
        self._heads = ()
        self._figures.clear()
        self._look()

    def content(self) -> object:
        return document(runs(self._rows, self._folder))
