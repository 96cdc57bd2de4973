"""Predictions: the step of a changed job, with keys that turn its settings."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from profkit.explain.predict.board import Board, open_board
from profkit.explain.predict.job import read_job
from profkit.report.whatif_document import whatif_json
from profkit.tui.screens.base import RunScreen
from profkit.tui.widgets.draw import lines
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.table import VirtualTable
from profkit.tui.widgets.whatif_draw import answer_columns, detail_lines, summary_lines


class WhatIfScreen(RunScreen[Board]):
    """A table of questions, and the answer to the one under the cursor."""

    NAME = "whatif"
    KEY = "w"
    TITLE = "What if"

    DEFAULT_CSS = """
    WhatIfScreen #summary { padding: 0 1; height: auto; }
    WhatIfScreen #details { height: 1fr; padding: 1 1 0 1; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "turn(1)", "more", key_display="+"),
        Binding("minus", "turn(-1)", "less", key_display="-"),
        Binding("0", "start_again", "start again"),
    ]

    _board: Board | None = None
    """The view, with the settings that the user has turned."""

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(id="answers", empty="the run shows no cause by itself")
        with VerticalScroll(id="details", can_focus=False):
            yield Lines(id="words")

    build = staticmethod(lambda source: open_board(read_job(source.trace)))

    to_json = staticmethod(
        lambda board: whatif_json(board.answers, board.job.evidence.trace.path, None)
    )

    def content(self) -> Any:
        return None if self._board is None else self.to_json(self._board)

    def show(self, view: Board) -> None:
        board = self._board = self._board or view
        self.query_one("#summary", Static).update(lines(summary_lines(board, self.palette)))
        keys = [(answer.question.kind, answer.question.cause) for answer in board.answers]
        self.show_table("answers", answer_columns(board), keys, self.size.height // 2 - 3)
        self.on_virtual_table_moved()

    def on_virtual_table_moved(self) -> None:
        """Show the answer under the cursor."""
        row, board = self.table.row, self._board
        if board is None or row is None or row >= len(board.answers):
            return
        answer = board.answers[row]
        self.query_one("#words", Lines).show(lambda _: detail_lines(answer, self.palette))

    def action_turn(self, by: int) -> None:
        """Turn the setting under the cursor up or down."""
        row, board = self.table.row, self._board
        if board is None or row is None or self.view is None:
            return
        if row >= len(board.settings):
            self.tell("this row is no setting; + and - turn the rows above")
            return
        self._board = board.turn(row, by)
        if self._board is board:
            self.tell("that is as far as this setting goes")
        self.show(self.view)

    def action_start_again(self) -> None:
        """Turn all settings back to where they began."""
        self._board = None
        if self.view is not None:
            self.show(self.view)


SCREEN = WhatIfScreen
"""The screen of this file."""
