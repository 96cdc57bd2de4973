"""Compare every cell of each screen with a snapshot, in two themes.

The pictures would be 2 MB with random ids and fonts, and nobody could read a change in them. So
a snapshot contains what tests/tui/cells.py reads from the whole SVG: the text, below it the number
of cells of each look for each line, and the looks in each theme. If a colour moves by one cell, or
changes in one theme alone, a line differs. The failure names the folder of the new pictures.

After an intended change run `PROFKIT_UPDATE_SNAPSHOTS=1 pytest tests/tui/test_snapshots.py`, and
check what has changed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from profkit.tui.app import load_screens
from profkit.tui.headless import settle
from tests.tui.cells import as_lines, read_cells
from tests.tui.driving import Driver, drive

SIZE = (120, 40)
THEMES = ("colour-blind", "dark")
KEPT = Path(__file__).parent / "snapshots"
MANY = "explain-more"
FIRST = ("runs", "overview", "explain", "timeline")
COMPARED: Mapping[str, Sequence[str]] = {"explain": ("two",), MANY: ("one", "again")}


def _names() -> list[Any]:
    """Return the screens; by default, those that most readers see are looked at."""
    others = [name for name in (*load_screens(), MANY) if name not in FIRST]
    return [*FIRST, *(pytest.param(name, marks=pytest.mark.nightly) for name in others)]


@pytest.mark.parametrize("name", _names())
def test_a_screen_looks_as_it_did(
    folder: Path, series: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir((series if name == MANY else folder).parent)
    now: dict[str, str] = {}

    async def look(driver: Driver) -> None:
        columns, rows = SIZE
        await driver.pilot.resize_terminal(columns, rows)
        pictures = await _pictures(driver)
        snapshot = f"{name}-{columns}x{rows}"
        now[f"{snapshot}.txt"] = as_snapshot(pictures)
        for theme, svg in pictures.items():
            (tmp_path / f"{snapshot}-{theme}.svg").write_text(svg)

    runs, screen = Path("runs"), name.partition("-")[0]
    run = runs / ("four" if name == MANY else "slow")
    if name == "runs":
        run, screen = runs, ""
    drive(
        run,
        look,
        screen=screen,
        bases=[runs / base for base in COMPARED.get(name, ())],
    )
    if os.environ.get("PROFKIT_UPDATE_SNAPSHOTS"):
        KEPT.mkdir(exist_ok=True)
        for file, text in now.items():
            (KEPT / file).write_text(text)
    assert now == {file: (KEPT / file).read_text() for file in now}, (
        f"the pictures are in {tmp_path}"
    )


async def _pictures(driver: Driver) -> dict[str, str]:
    """Return the screen in each theme, without the name of the theme on the status line."""
    pictures = {}
    for theme in THEMES:
        driver.app.theme = theme
        await settle(driver.pilot)
        driver.app.screen.tell("")  # type: ignore[attr-defined]  # every screen has it
        await settle(driver.pilot)
        pictures[theme] = driver.app.export_screenshot()
    return pictures


def as_snapshot(pictures: Mapping[str, str]) -> str:
    """Return the text, the looks of each line as counts and letters, and the letters' meaning."""
    screens = [read_cells(svg) for svg in pictures.values()]
    assert len({tuple(as_lines(cells)) for cells in screens}) == 1, "a theme changes colours alone"
    letters: dict[tuple[str, ...], str] = {}
    lines = []
    for rows in zip(*screens, strict=True):
        looks = [tuple(cell.look for cell in cells) for cells in zip(*rows, strict=True)]
        runs = (
            (len(list(run)), letters.setdefault(look, _letter(len(letters))))
            for look, run in itertools.groupby(looks)
        )
        lines.append(" ".join(f"{count}{letter}" for count, letter in runs))
    legend = [
        f"{letter}: "
        + "; ".join(f"{theme} {look}" for theme, look in zip(pictures, looks, strict=True))
        for looks, letter in letters.items()
    ]
    return "\n".join([*as_lines(screens[0]), "", *lines, "", *legend, ""])


def _letter(number: int) -> str:
    rest, place = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("a") + place)


def test_a_colour_that_moves_by_one_cell_is_another_snapshot(folder: Path) -> None:
    pictures: list[str] = []

    async def look(driver: Driver) -> None:
        pictures.append(driver.app.export_screenshot())

    drive(folder, look)
    (picture,) = pictures
    ground = next(row for row in picture.split("<rect ") if 'x="12.2" y="50.3"' in row)
    moved = picture.replace(ground, ground.replace('x="12.2"', 'x="24.4"'))
    assert moved != picture
    assert as_snapshot({"dark": moved}) != as_snapshot({"dark": picture})
