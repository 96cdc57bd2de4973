"""Drive the interface without a terminal, and read a screen as lines of text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from textual.pilot import Pilot

from profkit.tui.app import ProfkitApp
from profkit.tui.headless import settle
from tests.tui.cells import as_lines, read_cells

Steps: TypeAlias = Callable[["Driver"], Awaitable[None]]


class Driver:
    """Presses keys, waits until everything is built and drawn, and reads the screen."""

    def __init__(self, pilot: Pilot[None], app: ProfkitApp) -> None:
        self.pilot = pilot
        self.app = app

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await settle(self.pilot)

    async def type(self, text: str) -> None:
        names = {".": "full_stop", " ": "space", ":": "colon"}
        await self.press(*(names.get(char, char) for char in text))

    @property
    def screen(self) -> str:
        return type(self.app.screen).__name__

    @property
    def text(self) -> str:
        return "\n".join(screen_lines(self.app.export_screenshot()))


def drive(
    path: Path, steps: Steps, *, size: tuple[int, int] = (120, 40), **options: object
) -> None:
    """Start the interface on runs, and perform the steps of a user."""

    async def run() -> None:
        app = ProfkitApp(path, **options)  # type: ignore[arg-type]  # the app's own options
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await steps(Driver(pilot, app))

    asyncio.run(run())


def shown(path: Path, *, size: tuple[int, int] = (120, 40), **options: object) -> str:
    """Return the first screen as text."""
    found: list[str] = []

    async def look(driver: Driver) -> None:
        found.append(driver.text)

    drive(path, look, size=size, **options)
    return found[0]


def screen_lines(svg: str) -> list[str]:
    """Return the cells of a picture as lines of text."""
    return as_lines(read_cells(svg))
