"""Runs: which there are, how fast each is, and what is slow in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from profkit.analysis.runs_view import RunHead, list_runs
from profkit.text import plural, safe_text
from profkit.tui._draw import line
from profkit.tui._screen import FrameScreen
from profkit.tui._table import Column, VirtualTable


class RunsScreen(FrameScreen):
    """The runs of a folder."""

    TITLE = "Runs"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "mark", "mark", key_display="Space"),
        Binding("d", "compare", "compare the two that are marked"),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._heads: tuple[RunHead, ...] = ()

    def compose_view(self) -> ComposeResult:
        yield VirtualTable(empty=f"no runs in {self._folder}; make one with 'profkit trace WORKLOAD'")

    def on_mount(self) -> None:
        self._heads = list_runs(self._folder)
        self._show()
        self.table.focus()

    @property
    def table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def head(self) -> Text:
        return line([(" profkit ", self.palette.style("title")), (f" {plural(len(self._heads), 'run')} in {self._folder}", None)])

    def _show(self) -> None:
        heads = self._heads
        self.table.show_rows(
            [
                Column("run", [head.name for head in heads], stretches=True),
                Column("workload", [head.workload for head in heads]),
                Column("framework", [head.framework for head in heads]),
                Column("GPUs", [head.ranks for head in heads], right=True),
                Column("state", [head.state for head in heads]),
            ],
            keys=[head.path for head in heads],
        )
        self.draw_head()

    def open_selected(self, screen: str = "overview") -> None:
        """Open the run under the cursor."""
        path = self.table.key
        if isinstance(path, Path):
            cast("Any", self.app).open_run(path, screen=screen)

    def on_virtual_table_opened(self, event: VirtualTable.Opened) -> None:
        self.open_selected()

    def action_mark(self) -> None:
        self.table.toggle_mark()

    def action_compare(self) -> None:
        marked = [head.path for head in reversed(self._heads) if head.path in self.table.marked]
        if len(marked) != 2:
            self.tell(f"mark two runs with Space, then d: {plural(len(marked), 'run')} marked")
            return
        cast("Any", self.app).open_run(marked[1], base=marked[0], screen="explain")

    @property
    def stem(self) -> str:
        return f"runs-{safe_text(self._folder.name)}"
