"""The screen of what-if answers: turning settings, and what it tells."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tui.driving import Driver, drive


def test_keys_turn_the_setting_under_the_cursor(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("w")
        assert driver.screen == "WhatIfScreen"
        assert "links 2.00 times as fast" in driver.text
        await driver.press("plus")
        assert "links 3.00 times as fast" in driver.text
        await driver.press("minus", "minus")
        assert "links 0.500 times as fast" in driver.text
        await driver.press("0")
        assert "links 2.00 times as fast" in driver.text
        await driver.press("down", "equals_sign")
        assert "8 ranks" in driver.text
        assert "rests on" in driver.text

    drive(folder / "two", walk)


def test_a_row_without_a_setting_says_so(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("w", "G", "plus")
        assert "this row is no setting" in driver.text

    drive(folder / "two", walk)


def test_the_screen_exports_what_it_shows(folder: Path, tmp_path: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("w", "plus")
        screen = driver.app.screen
        found = json.loads(json.dumps(screen.content()))  # type: ignore[attr-defined]  # a run's
        values = [each["question"]["value"] for each in found["predictions"]]
        assert values[0] == 3

    drive(folder / "two", walk)
