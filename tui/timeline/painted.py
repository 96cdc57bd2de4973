"""Cells of the timeline: characters with styles, and the colour and letter of each kind."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from profkit.show.palette import role_of_kind
from profkit.tui.themes import PHASE_LETTERS, Palette

Painted = tuple[str, Style]

_LETTER_OF: Final[Mapping[str, str]] = {
    **PHASE_LETTERS,
    "convolution": "c",
    "gemm": "g",
    "attention": "t",
    "communication": "m",
    "all_reduce": "r",
    "normalisation": "n",
    "reduction": "r",
    "elementwise": "e",
    "copy to device": "h",
    "copy to host": "k",
    "layout": "l",
    "pooling": "p",
    "softmax": "s",
}
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

_BLACK, _WHITE = Color.parse("#000000"), Color.parse("#ffffff")
_LUMINANCE: Final = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in the brightness of a colour (ITU-R BT.601)."""

_BRIGHT: Final = 128
"""Letters are black on a ground that is brighter than this, and white on others."""


@dataclass(frozen=True)
class Look:
    """The theme, ASCII or not, and whether letters must show what colours cannot."""

    palette: Palette
    plain: bool
    letters: bool

    def kind(self, name: str) -> Style:
        """Return the style of a kind's letter."""
        return self.palette.style(role_of_kind(name))

    def char(self, fancy: str, plain: str) -> str:
        return plain if self.plain else fancy


@functools.cache
def filled(style: Style) -> Style:
    """Return the style of a cell that is filled with a colour, with letters readable on it."""
    colour = style.color or Color.default()
    brightness = 0.0
    for part, weight in zip(colour.get_truecolor(), _LUMINANCE, strict=True):
        brightness += part * weight
    letters = _BLACK if brightness > _BRIGHT else _WHITE
    return Style(color=letters, bgcolor=colour)


@functools.lru_cache(maxsize=256)
def letters_for(kinds: tuple[str, ...]) -> Mapping[str, str]:
    """Return a letter for each kind: its usual one, otherwise the first free one of its name.

    No two kinds share a letter as long as the alphabet lasts.
    """
    found: dict[str, str] = {}
    for kind in sorted(kinds, key=lambda name: (name not in _LETTER_OF, name)):
        found[kind] = "?"
        usual = _LETTER_OF.get(kind, "")
        if usual == "?":
            continue
        for letter in (usual, *kind.lower(), *_LETTERS):
            if letter and letter in _LETTERS and letter not in found.values():
                found[kind] = letter
                break
    return found


def strip(cells: Sequence[Painted], width: int, ground: Style) -> Strip:
    """Return cells as a line of this width, with neighbours of one style in one segment.

    Styles are compared by identity, because comparing their values takes longer.
    """
    segments: list[Segment] = []
    grounded: dict[int, Style] = {}
    text, style = "", None
    for char, next_style in cells:
        if next_style is not style:
            if text and style is not None:
                segments.append(Segment(text, grounded[id(style)]))
            text, style = "", next_style
            if id(style) not in grounded:
                grounded[id(style)] = ground + style
        text += char
    if text and style is not None:
        segments.append(Segment(text, grounded[id(style)]))
    return Strip(segments).adjust_cell_length(width, ground).crop(0, width)
