"""A picture of the interface as what a terminal holds: a character and a style in each cell.

What an SVG has besides (its random ids, fonts, sizes in pixels, the window around it) says nothing of the interface. What
it has in a shape that is not known here is an error, so that nothing of a picture goes unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from rich.cells import cell_len

CELL_WIDTH: Final = 12.2
LINE_HEIGHT: Final = 24.4
NOTHING: Final = ""

_SVG: Final = "{http://www.w3.org/2000/svg}"
_RULE: Final = re.compile(r"\.(\S+-r\d+) \{ ([^}]*)\}")
_LINE: Final = re.compile(r"-line-(\d+)\)")
_GROUND: Final = "on "
_LOOKS: Final = {"font-weight": "bold", "font-style": "italic", "text-decoration": ""}


@dataclass(frozen=True)
class Cell:
    """A character, empty behind one that is two cells wide, and how it looks: its colour, its ground, and what else is done to it."""

    char: str = " "
    ink: str = NOTHING
    ground: str = NOTHING

    @property
    def look(self) -> str:
        """The style that is seen: of a blank cell the ink is not, but for a line under it."""
        ink = self.ink if self.char.strip() or not self.char else " ".join(word for word in self.ink.split() if "line" in word)
        return " ".join(filter(None, (ink, self.ground and _GROUND + self.ground))) or "nothing"


def read_cells(svg: str) -> list[list[Cell]]:
    """All cells of a picture, line by line."""
    root = ET.fromstring(svg)
    (whole,) = (group for group in root.iter(_SVG + "g") if "matrix" in group.get("class", ""))
    inks = {name: _ink(rule) for name, rule in _RULE.findall("".join(style.text or "" for style in root.iter(_SVG + "style")))}
    grid: dict[int, dict[int, Cell]] = {}
    container = {group: parent for parent in root.iter() for group in parent}
    for rect in container[whole].iter(_SVG + "rect"):
        line, ground = round((float(rect.attrib["y"]) - 1.5) / LINE_HEIGHT), rect.attrib["fill"]
        for column in _columns(rect.attrib["x"], round(float(rect.attrib["width"]) / CELL_WIDTH)):
            grid.setdefault(line, {})[column] = Cell(ground=ground)
    for text in whole:
        place = _LINE.search(text.attrib["clip-path"])
        assert place, "a text that is on no line"
        row, ink = grid.setdefault(int(place[1]), {}), inks[text.attrib["class"]]
        chars = list(_chars((text.text or "").replace("\xa0", " ")))
        for column, char in zip(_columns(text.attrib["x"], len(chars)), chars, strict=True):
            row[column] = Cell(char, ink, row.get(column, Cell()).ground)
    width = max((column for row in grid.values() for column in row), default=-1) + 1
    return [[grid.get(line, {}).get(column, Cell()) for column in range(width)] for line in range(max(grid, default=-1) + 1)]


def _ink(rule: str) -> str:
    """What a rule of the picture's style sheet does to characters: a colour, and words for all else."""
    settings = dict(part.split(": ", 1) for part in rule.strip().rstrip(";").split(";"))
    colour = settings.pop("fill")
    return " ".join([colour, *(word for name, value in settings.items() if (word := _LOOKS[name] or value))])


def _columns(x: str, count: int) -> range:
    first = round(float(x) / CELL_WIDTH)
    return range(first, first + count)


def _chars(text: str) -> Iterator[str]:
    """A character a cell; one that takes none belongs to the one before it."""
    shown: list[str] = []
    for char in text:
        width = cell_len(char)
        if width:
            shown += [char, *[""] * (width - 1)]
        elif shown:
            shown[-1] += char
    yield from shown


def as_lines(cells: list[list[Cell]]) -> list[str]:
    """The characters alone."""
    return ["".join(cell.char for cell in row).rstrip() for row in cells]
