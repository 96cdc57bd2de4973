"""The screen of what-if answers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tui.driving import Driver, drive


def test_the_screen_shows_and_exports_the_answer_under_the_cursor(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("w")
        assert driver.screen == "WhatIfScreen"
        screen = driver.app.screen
        found = json.loads(json.dumps(screen.content()))  # type: ignore[attr-defined]  # a run's
        words = [each["question"]["words"] for each in found["predictions"]]
        assert "links 2.00 times as fast" in words
        assert "rests on" in driver.text
        shown = driver.text
        await driver.press("G")
        assert len(words) == 1 or driver.text != shown

    drive(folder / "two", walk)
