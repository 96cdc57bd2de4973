"""The interface as a test drives it: without a terminal, on the pinned Textual, one screen as lines of text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree as ET

from textual.pilot import Pilot

from profkit.tui.app import ProfkitApp
from profkit.tui.headless import settle

Steps: TypeAlias = Callable[["Driver"], Awaitable[None]]

SVG = "{http://www.w3.org/2000/svg}"
CELL_WIDTH, LINE_HEIGHT = 12.2, 24.4


class Driver:
    """Presses keys, waits until all is built and drawn, and reads the screen."""

    def __init__(self, pilot: Pilot[None], app: ProfkitApp) -> None:
        self.pilot = pilot
        self.app = app

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await settle(self.pilot)

    async def type(self, text: str) -> None:
        await self.press(*("full_stop" if char == "." else "space" if char == " " else "colon" if char == ":" else char for char in text))

    @property
    def screen(self) -> str:
        return type(self.app.screen).__name__

    @property
    def text(self) -> str:
        return "\n".join(screen_lines(self.app.export_screenshot()))


def drive(path: Path, steps: Steps, *, size: tuple[int, int] = (120, 40), **options: object) -> None:
    """Start the interface on runs, and do what a user would."""

    async def run() -> None:
        app = ProfkitApp(path, **options)  # type: ignore[arg-type]  # a test names the app's own options
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await steps(Driver(pilot, app))

    asyncio.run(run())


def shown(path: Path, *, size: tuple[int, int] = (120, 40), **options: object) -> str:
    """The first screen as text."""
    found: list[str] = []

    async def look(driver: Driver) -> None:
        found.append(driver.text)

    drive(path, look, size=size, **options)
    return found[0]


def screen_lines(svg: str) -> list[str]:
    """The cells of a picture, line by line."""
    lines: dict[int, dict[int, str]] = {}
    for element in ET.fromstring(svg).iter(SVG + "text"):
        place = re.search(r"line-(\d+)", element.get("clip-path", ""))
        if place is None:
            continue
        column = round(float(element.get("x", "0")) / CELL_WIDTH)
        lines.setdefault(int(place[1]), {})[column] = (element.text or "").replace("\xa0", " ")
    return [_joined(lines.get(number, {})) for number in range(max(lines, default=-1) + 1)]


def _joined(pieces: dict[int, str]) -> str:
    line = ""
    for column, text in sorted(pieces.items()):
        line = line.ljust(column) + text
    return line.rstrip()
