"""The themes, and the style of each role in them.

A screen names roles (`bad`, `data`, `dim`), never colours. It never shows a state by a role alone:
a word or a symbol says the same, for people and terminals without colours.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from profkit.show.palette import PHASE_COLOURS

PHASE_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "data": "d",
        "h2d": "c",
        "forward": "f",
        "backward": "b",
        "allreduce": "a",
        "optimizer": "o",
        "compile": "k",
        "other": "x",
        "unknown": "?",
    }
)
"""A letter for each phase, used without colours or without room for the name."""

_ROLES: Final = (
    *PHASE_LETTERS,
    "good",
    "bad",
    "unsure",
    "dim",
    "title",
    "accent",
    "marked",
    "cursor",
)

_DARK: Final = (
    *(colours.dark for colours in PHASE_COLOURS.values()),
    *("#5fb878", "#ef6f6c", "#e8b339", "#8d99ae", "bold", "#ffa62b", "bold #ffa62b"),
    "on #2b3b4d",
)
_LIGHT: Final = (
    *(colours.light for colours in PHASE_COLOURS.values()),
    *("#1a7f37", "#cf222e", "#9a6700", "#57606a", "bold", "#953800", "bold #953800"),
    "on #d3e3f5",
)
_ANSI: Final = (
    *("yellow", "magenta", "bright_cyan", "blue", "red", "green", "bright_red"),
    *("cyan", "bright_black"),
    *("green", "red", "yellow", "bright_black", "bold"),
    *("bright_yellow", "bold bright_yellow", "reverse"),
)
# The palette of Okabe and Ito, whose colours differ for people with any kind of colour vision.
_COLOUR_BLIND: Final = (
    *("#e69f00", "#cc79a7", "#56b4e9", "#0072b2", "#d55e00", "#009e73", "#777777"),
    *("#999999", "#f0e442"),
    *("#56b4e9", "#d55e00", "#f0e442", "#999999", "bold", "#e69f00", "bold #e69f00"),
    "on #26405c",
)


@dataclass(frozen=True, eq=False)
class Palette:
    """A Textual theme, and the style of each role in it."""

    theme: Theme
    colours: tuple[str, ...]

    @functools.cache  # noqa: B019  # four palettes live as long as the program
    def style(self, role: str) -> Style:
        """Return the style of a role; an unknown role looks like plain text."""
        if role not in _ROLES:
            return Style.null()
        return Style.parse(self.colours[_ROLES.index(role)])


PALETTES: Final[Mapping[str, Palette]] = MappingProxyType(
    {
        "dark": Palette(
            dataclasses.replace(
                BUILTIN_THEMES["textual-dark"],
                name="dark",
                background="#101418",
                surface="#161b20",
                panel="#1e252b",
            ),
            _DARK,
        ),
        "light": Palette(
            dataclasses.replace(
                BUILTIN_THEMES["textual-light"],
                name="light",
                background="#fbfbfb",
                surface="#f1f1f1",
                panel="#e6e6e6",
            ),
            _LIGHT,
        ),
        "ansi": Palette(dataclasses.replace(BUILTIN_THEMES["ansi-dark"], name="ansi"), _ANSI),
        "colour-blind": Palette(
            dataclasses.replace(
                BUILTIN_THEMES["textual-dark"],
                name="colour-blind",
                primary="#0072b2",
                accent="#e69f00",
                success="#56b4e9",
                error="#d55e00",
                warning="#f0e442",
            ),
            _COLOUR_BLIND,
        ),
    }
)
"""The themes, in the order in which `t` selects them."""
