"""Reads the screens of the interface, and the exported pages, as text with tables and figures."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.tui.app import load_screens
from tests.tui.driving import Driver, drive

SIZE = (140, 50)
SCREENS = ("overview", "ranks", "kernels", "loader", "explain", "timeline")
STEP = 30
"""The step that the timeline is zoomed to."""

LABELS = 24
"""Cells of the labels of the timeline's rows, as `Canvas.label_width`."""

_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_DURATION = re.compile(r"([+-]?[\d,]+(?:\.\d+)?) (ns|us|ms|s)")
_GAP = re.compile(r"\s{2,}")
_CUT_FIGURE = re.compile(r"[\d.,]…|…[\d.,]")
_BAR = re.compile("[█▉▊▋▌▍▎▏▒━]+")

Cells = Sequence[str]


def read_ns(text: str) -> float:
    """Return a duration on a screen in ns."""
    found = _DURATION.fullmatch(text)
    assert found, f"'{text}' is no duration"
    return float(found[1].replace(",", "")) * _NS[found[2]]


def cells_of(line: str) -> list[str]:
    """Return the cells of a table's line, without bars and marks."""
    cells = [cell.rstrip(" ▲▼") for cell in _GAP.split(line.strip())]
    return [cell for cell in cells if cell and not _BAR.fullmatch(cell)]


def table(text: str, *header: str) -> list[list[str]]:
    """Return the rows below the line that begins with these titles, up to an empty line.

    The titles are the first row. Rows inside others keep their name without the indent.
    """
    lines = iter(text.splitlines())
    for line in lines:
        cells = cells_of(line)
        if cells[: len(header)] == list(header):
            rows = [cells]
            for row in lines:
                if not row.strip():
                    break
                rows.append(cells_of(row))
            return rows
    return []


def cut_figures(text: str) -> list[str]:
    """Return the lines in which a figure is cut off."""
    return [line for line in text.splitlines() if _CUT_FIGURE.search(line)]


@dataclass
class Drawn:
    """The texts of a run's screens, and the letters of its phases on the timeline."""

    texts: dict[str, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    """The label of each rank's row of phases."""
    cells: dict[int, str] = field(default_factory=dict)
    """The letters of the row's cells inside of the step."""
    cell_ns: float = 0.0

    def covered_ns(self, rank: int, letter: str) -> float:
        """Return how much of the step a phase covers, as the number of its cells says."""
        return self.cells[rank].lower().count(letter) * self.cell_ns


def draw(run: Path, base: Path) -> Drawn:
    """Open a run as a user does, and read its screens."""
    drawn = Drawn()

    async def look(driver: Driver) -> None:
        for name in SCREENS[:-1]:
            await driver.press(load_screens()[name].KEY)
            drawn.texts[name] = driver.text

    async def zoom(driver: Driver) -> None:
        await driver.press(load_screens()["timeline"].KEY, "g")
        await driver.type(str(STEP))
        await driver.press("enter")
        drawn.texts["timeline"] = driver.text
        _read_rows(driver, drawn)

    drive(run, look, size=SIZE, bases=[base])
    drive(run, zoom, size=SIZE, plain=True)
    return drawn


def _read_rows(driver: Driver, drawn: Drawn) -> None:
    """Read the rows of phases: each has a line with names, and below it one of letters alone."""
    sight: Any = driver.app.screen.sight  # type: ignore[attr-defined]  # the timeline's
    begin, end = sight.timeline.step_bounds(STEP)
    borders = sight.window.borders
    inside = [begin <= low and high <= end for low, high in itertools.pairwise(borders)]
    drawn.cell_ns = float(sight.window.cell_ns)
    lines = driver.text.splitlines()
    for place, line in enumerate(lines):
        found = re.match(r"[> ]r(\d+) (phases|launches)", line)
        if found and int(found[1]) not in drawn.cells:  # below the rows are words about the cursor
            cells = lines[place + 1].ljust(LABELS + len(inside))[LABELS:]
            shown = [cell for cell, keep in zip(cells, inside, strict=False) if keep]
            drawn.labels[int(found[1])] = found[2]
            drawn.cells[int(found[1])] = "".join(shown)


class _Texts(HTMLParser):
    """Collects the texts of a page, and its tables as rows of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in {"meta", "link", "br"}:  # they have no end
            self._inside.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" in self._inside or "svg" in self._inside or not data.strip():
            return
        self.texts.append(data.strip())
        if {"td", "th"} & set(self._inside):
            self.tables[-1][-1][-1] += data.strip()


@dataclass(frozen=True)
class Page:
    """An exported page: its texts without charts, and its tables as rows of cells."""

    text: str
    tables: Sequence[Sequence[Cells]]

    def table(self, *header: str) -> Sequence[Cells]:
        """Return the table with these titles, which are its first row."""
        for rows in self.tables:
            if rows and list(rows[0][: len(header)]) == list(header):
                return rows
        return []


def page_of(file: Path, *command: str) -> Page:
    """Return the page that a command writes."""
    run_command(*command, "-w", str(file))
    parser = _Texts()
    parser.feed(file.read_text(encoding="utf-8"))
    return Page("\n".join(parser.texts), parser.tables)


def json_of(*command: str) -> Mapping[str, Any]:
    """Return what a command prints with `--json`."""
    found: dict[str, Any] = json.loads(run_command(*command, "--json"))
    return found


def run_command(*command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(list(command))
    assert code in {ExitCode.DONE, ExitCode.REGRESSION, ExitCode.NOT_JUDGED}, printed.getvalue()
    return printed.getvalue()
