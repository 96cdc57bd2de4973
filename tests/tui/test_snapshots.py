"""Each screen at three widths and in two themes, on the pinned Textual: its text cell by cell, and which colours it has.

A snapshot holds the text once, and below it the colours of each theme, without their places. After a change that is wanted:
`PROFKIT_UPDATE_SNAPSHOTS=1 pytest tests/tui/test_snapshots.py`, and look at what has changed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from profkit.tui.app import load_screens
from profkit.tui.headless import settle
from tests.tui.driving import Driver, drive, screen_lines

SIZES = ((80, 24), (120, 40), (200, 50))
THEMES = ("colour-blind", "dark")
KEPT = Path(__file__).parent / "snapshots"
COLOUR = re.compile(r"fill: (#[0-9a-f]{6})")


@pytest.mark.parametrize("screen", ["", *load_screens()], ids=lambda screen: screen or "runs")
def test_a_screen_looks_as_it_did(folder: Path, screen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    now: dict[str, str] = {}

    async def look(driver: Driver) -> None:
        for columns, rows in SIZES:
            await driver.pilot.resize_terminal(columns, rows)
            now[f"{screen or 'runs'}-{columns}x{rows}.txt"] = await _snapshot(driver)

    run = Path("runs") / "slow" if screen else Path("runs")
    drive(run, look, screen=screen, base=Path("runs") / "two" if screen == "explain" else None)
    if os.environ.get("PROFKIT_UPDATE_SNAPSHOTS"):
        KEPT.mkdir(exist_ok=True)
        for name, text in now.items():
            (KEPT / name).write_text(text)
    assert now == {name: (KEPT / name).read_text() for name in now}


async def _snapshot(driver: Driver) -> str:
    texts, colours = [], []
    for theme in THEMES:
        driver.app.theme = theme
        await settle(driver.pilot)
        driver.app.screen.tell("")  # type: ignore[attr-defined]  # every screen has it
        await settle(driver.pilot)
        picture = driver.app.export_screenshot()
        texts.append("\n".join(screen_lines(picture)))
        colours.append(f"{theme}: {' '.join(sorted(set(COLOUR.findall(picture))))}")
    assert len(set(texts)) == 1, "a theme changes colours alone"
    return "\n".join([texts[0], "", *colours, ""])
