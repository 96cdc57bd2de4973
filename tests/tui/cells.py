"""Read a picture of the interface as terminal cells with a character and a style.

The other contents of an SVG (random ids, fonts, pixel sizes, the window around it) do not depend on
the interface. An element of an unknown shape is an error, so that no part of a picture is missed.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple
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


class Cell(NamedTuple):
    """A character with its colour and its ground; empty behind a character of two cells."""

    char: str
    ink: str
    ground: str

    @property
    def look(self) -> str:
        """The visible style; the ink of a blank cell is not visible, except for a line under it."""
        return _look(self.ink, self.ground, blank=self.char == " ")


@functools.cache
def _look(ink: str, ground: str, *, blank: bool) -> str:
    seen = " ".join(word for word in ink.split() if "line" in word) if blank else ink
    return " ".join(filter(None, (seen, ground and _GROUND + ground))) or "nothing"


def read_cells(svg: str) -> list[list[Cell]]:
    """Return all cells of a picture, line by line."""
    root = ET.fromstring(svg)
    inks = {
        name: _ink(rule)
        for name, rule in _RULE.findall(
            "".join(style.text or "" for style in root.iter(_SVG + "style"))
        )
    }
    (screen,) = (
        group for group in root.iter(_SVG + "g") if "clip-terminal" in group.get("clip-path", "")
    )
    grounds, chars, looks = _Grid(NOTHING), _Grid(" "), _Grid(NOTHING)
    for element in screen.iter():
        if element.tag == _SVG + "rect":
            width = round(float(element.attrib["width"]) / CELL_WIDTH)
            grounds.put(
                round((float(element.attrib["y"]) - 1.5) / LINE_HEIGHT),
                element,
                [element.attrib["fill"]] * width,
            )
        elif element.tag == _SVG + "text":
            place = _LINE.search(element.attrib["clip-path"])
            assert place, "a text that is on no line"
            shown = _chars((element.text or "").replace("\xa0", " "))
            chars.put(int(place[1]), element, shown)
            looks.put(int(place[1]), element, [inks[element.attrib["class"]]] * len(shown))
        else:
            assert element.tag == _SVG + "g", (
                f"an element that says nothing of a cell: {element.tag}"
            )
    size = (
        max(len(grounds.rows), len(chars.rows)),
        max((len(row) for grid in (grounds, chars) for row in grid.rows), default=0),
    )
    return [
        [Cell(*cell) for cell in zip(*rows, strict=True)]
        for rows in zip(*(grid.filled(*size) for grid in (chars, looks, grounds)), strict=True)
    ]


class _Grid:
    """Values of cells, some of which are not known."""

    def __init__(self, nothing: str) -> None:
        self.rows: list[list[str]] = []
        self._nothing = nothing

    def put(self, line: int, element: ET.Element, values: list[str]) -> None:
        """Set neighbouring values from the begin of an element on; an element may have no width."""
        if not values:
            return
        first = round(float(element.attrib["x"]) / CELL_WIDTH)
        self.rows += [[] for _ in range(line + 1 - len(self.rows))]
        row = self.rows[line]
        row += [self._nothing] * (first - len(row))
        row[first : first + len(values)] = values

    def filled(self, lines: int, columns: int) -> list[list[str]]:
        rows = [*self.rows, *([] for _ in range(lines - len(self.rows)))]
        return [row + [self._nothing] * (columns - len(row)) for row in rows]


def _ink(rule: str) -> str:
    """Return the colour of a rule of the picture's style sheet, and words for its other parts."""
    settings = dict(part.split(": ", 1) for part in rule.strip().rstrip(";").split(";"))
    colour = settings.pop("fill")
    return " ".join(
        [colour, *(word for name, value in settings.items() if (word := _LOOKS[name] or value))]
    )


def _chars(text: str) -> list[str]:
    """Return one character per cell; a combining character joins the one before it."""
    if text.isascii() and text.isprintable():
        return list(text)
    shown: list[str] = []
    for char in text:
        width = cell_len(char)
        if width:
            shown += [char, *[""] * (width - 1)]
        elif shown:
            shown[-1] += char
    return shown


def as_lines(cells: list[list[Cell]]) -> list[str]:
    """Return the characters without their styles."""
    return ["".join(cell.char for cell in row).rstrip() for row in cells]
