"""A screen is read, and its picture taken, when nothing is drawn or moved any more."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static

from profkit.tui.headless import QUIET_CHECKS, settle

LINES = 4 * QUIET_CHECKS


class Growing(Static):
    """Draws a line more for each size that it gets, up to some lines."""

    DEFAULT_CSS = "Growing { height: auto; }"

    def on_resize(self) -> None:
        if self.size.height < LINES:
            self.update("\n".join(["line"] * (self.size.height + 1)))


class GrowingApp(App[None]):
    def compose(self) -> ComposeResult:
        yield Growing("line")


async def _no_wait(seconds: float) -> None:
    """Return at once: a process that gets no processor seems to be idle."""


def test_a_layout_that_still_changes_has_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a screen could be read before each line had its room."""
    monkeypatch.setattr("textual.pilot.wait_for_idle", _no_wait)

    async def height() -> int:
        app = GrowingApp()
        async with app.run_test(size=(40, 2 * LINES)) as pilot:
            await settle(pilot)
            return app.query_one(Growing).size.height

    assert asyncio.run(height()) == LINES
