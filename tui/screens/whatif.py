"""Predictions: the step of a changed job."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from profkit.explain.predict.ask import answer_all
from profkit.explain.predict.job import read_job
from profkit.explain.predict.prediction import Prediction
from profkit.report.whatif_document import ANSWERS, answer_section, whatif
from profkit.show import json as show_json
from profkit.show.document import Table
from profkit.tui.screens.base import RunScreen
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.table import VirtualTable


class WhatIfScreen(RunScreen[Sequence[Prediction]]):
    """A table of questions, and the answer to the one under the cursor."""

    NAME = "whatif"
    KEY = "w"
    TITLE = "What if"

    DEFAULT_CSS = """
    WhatIfScreen #summary { padding: 0 1; height: auto; }
    WhatIfScreen #answers { scrollbar-size: 0 0; }
    WhatIfScreen #details { height: 1fr; padding: 1 1 0 1; scrollbar-size-vertical: 1; }
    """

    def compose_view(self) -> ComposeResult:
        yield Static(id="summary")
        yield VirtualTable(id="answers")
        with VerticalScroll(id="details", can_focus=False):
            yield Lines(id="words")

    build = staticmethod(lambda source: answer_all(read_job(source.trace)))

    to_json = staticmethod(lambda view: show_json.document(whatif(view)))

    def show(self, view: Sequence[Prediction]) -> None:
        document = whatif(view)
        words = [(document.summary, None), (f"; {document.verdict}", self.palette.style("dim"))]
        self.query_one("#summary", Static).update(line(words))
        keys = [(answer.question.kind, answer.question.cause) for answer in view]
        self.show_table(
            "answers", columns_of(Table(ANSWERS, view)), keys, self.size.height // 2 - 3
        )
        self.on_virtual_table_moved()

    def on_virtual_table_moved(self) -> None:
        """Show the answer under the cursor."""
        row, answers = self.table.row, self.view
        if answers is None or row is None or row >= len(answers):
            return
        self.show_notes("words", answer_section(answers[row]))


SCREEN = WhatIfScreen
"""The screen of this file."""
