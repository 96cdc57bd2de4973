"""A flame graph as SVG, without a script: titles name what boxes have no room for."""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from profkit.analysis.flames import Flame, FlameBox
from profkit.show.svg import WIDTH, bar, label
from profkit.text import duration, percent, plural, shorten

ROW = 18
HEADING = 22
CHAR_WIDTH = 6.7
"""Width of a letter of the names in boxes, which are in a font of fixed width."""

LEAST_CHARS = 4
MARGIN = 3


def flame_height(flame: Flame) -> int:
    return HEADING + ROW * flame.depth + 4


def draw_flame(flame: Flame) -> Iterator[str]:
    """Yield a heading with the phase, and its boxes with the outermost callers on top."""
    seen = plural(flame.samples, "sample")
    words = f"{flame.phase}: {duration(flame.step_ns)} per step, {seen}"
    yield label("strong", 0, HEADING - 8, words)
    for box in flame.boxes:
        yield from _draw_box(box, flame.step_ns)


def _draw_box(box: FlameBox, step_ns: float) -> Iterator[str]:
    width = box.share * WIDTH
    top = HEADING + ROW * box.depth
    kind = "flame-own" if box.is_own else "flame-other"
    time = f"{percent(box.share)}, {duration(box.share * step_ns)} per step"
    title = f"{box.place.words()}: {time}"
    yield bar(kind, box.start, box.start + box.share, top, ROW - 1, title)
    chars = int((width - 2 * MARGIN) / CHAR_WIDTH)
    if chars >= LEAST_CHARS:  # a plot inside a plot cuts off what is wider on a narrow page
        name = label("flame-name", MARGIN, ROW - 5, shorten(box_words(box), chars))
        place = f'x="{100 * box.start:.2f}%" width="{100 * box.share:.2f}%"'
        yield f'<svg {place} y="{top}" height="{ROW}">{name}</svg>'


def box_words(box: FlameBox) -> str:
    """Return the short name of a box."""
    place = box.place
    if not place.line:
        return place.words()
    return f"{place.function} {os.path.basename(place.file)}:{place.line}"
