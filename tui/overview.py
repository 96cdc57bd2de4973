"""Overview: one run's throughput, where a step goes, and what to know before believing it."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from profkit.analysis.overview import Overview, build_overview
from profkit.report import as_json, as_text
from profkit.tui._library import Source
from profkit.tui._screen import RunScreen


class OverviewScreen(RunScreen[Overview]):
    NAME = "overview"
    KEY = "1"
    TITLE = "Overview"
    KEEPS_UP = True

    def compose_view(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="text", markup=False)

    @staticmethod
    def build(source: Source) -> Overview:
        return build_overview(source.trace, source.ceilings)

    @staticmethod
    def to_json(view: Overview) -> Any:
        return as_json.overview(view)

    def show(self, view: Overview) -> None:
        self.query_one("#text", Static).update(as_text.overview(view))


SCREEN = OverviewScreen
