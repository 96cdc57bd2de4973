"""The themes, and what each of a screen's roles looks like in them.

A screen speaks of roles (`bad`, `data`, `dim`), never of colours, and never tells a state by its role alone:
a word or a symbol stands beside it, for people and terminals without colours.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

PHASE_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "data": "d",
        "h2d": "c",
        "forward": "f",
        "backward": "b",
        "allreduce": "a",
        "optimizer": "o",
        "other": "x",
        "unknown": "?",
    }
)
"""What stands for a phase where there is no room for its name, and where there are no colours."""

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
    *("#e8b339", "#c77dff", "#4ea8de", "#2f6fb0", "#ef6f6c", "#5fb878", "#8d99ae", "#bcbcbc"),
    *("#5fb878", "#ef6f6c", "#e8b339", "#8d99ae", "bold", "#ffa62b", "bold #ffa62b", "reverse"),
)
_LIGHT: Final = (
    *("#9a6700", "#8250df", "#0969da", "#0a3069", "#cf222e", "#1a7f37", "#57606a", "#6e7781"),
    *("#1a7f37", "#cf222e", "#9a6700", "#57606a", "bold", "#953800", "bold #953800", "reverse"),
)
_ANSI: Final = (
    *("yellow", "magenta", "bright_cyan", "blue", "red", "green", "cyan", "bright_black"),
    *(
        "green",
        "red",
        "yellow",
        "bright_black",
        "bold",
        "bright_yellow",
        "bold bright_yellow",
        "reverse",
    ),
)
_COLOUR_BLIND: Final = (  # the palette of Okabe and Ito, which people of all kinds of colour vision tell apart
    *("#e69f00", "#cc79a7", "#56b4e9", "#0072b2", "#d55e00", "#009e73", "#999999", "#f0e442"),
    *("#56b4e9", "#d55e00", "#f0e442", "#999999", "bold", "#e69f00", "bold #e69f00", "reverse"),
)


@dataclass(frozen=True, eq=False)
class Palette:
    """A theme of Textual's, and the style of each role in it."""

    theme: Theme
    colours: tuple[str, ...]

    @functools.cache  # noqa: B019  # four palettes live as long as the program
    def style(self, role: str) -> Style:
        """The style of a role; a role that is not known looks like plain text."""
        return Style.parse(self.colours[_ROLES.index(role)]) if role in _ROLES else Style.null()


def _theme(name: str, like: str, **changes: str) -> Theme:
    base = BUILTIN_THEMES[like]
    parts = {
        part: getattr(base, part)
        for part in (
            "primary",
            "secondary",
            "warning",
            "error",
            "success",
            "accent",
            "foreground",
            "background",
            "surface",
            "panel",
        )
    }
    return Theme(
        name=name,
        **{**parts, **changes},
        dark=base.dark,
        ansi=base.ansi,
        boost=base.boost,
        variables=dict(base.variables),
    )


PALETTES: Final[Mapping[str, Palette]] = MappingProxyType(
    {
        "dark": Palette(
            _theme(
                "dark", "textual-dark", background="#101418", surface="#161b20", panel="#1e252b"
            ),
            _DARK,
        ),
        "light": Palette(
            _theme(
                "light", "textual-light", background="#fbfbfb", surface="#f1f1f1", panel="#e6e6e6"
            ),
            _LIGHT,
        ),
        "ansi": Palette(_theme("ansi", "ansi-dark"), _ANSI),
        "colour-blind": Palette(
            _theme(
                "colour-blind",
                "textual-dark",
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
"""In the order in which `t` goes through them."""
