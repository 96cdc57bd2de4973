"""A flame graph as one HTML page, without a script."""

from __future__ import annotations

import html
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from profkit.text import duration, percent, safe_text, shorten

WIDTH, ROW = 1200.0, 18
LEAST_WIDTH = 1.0
"""Narrower boxes are not drawn: nobody sees them, and they make the file large."""

CHAR_WIDTH = 6.6
LEAST_CHARS = 4

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 13px sans-serif; margin: 1em }}
text {{ font: 11px monospace; pointer-events: none }}
rect:hover {{ stroke: #000 }}
</style></head><body>
<h1>{name}</h1>
<p>Time by sampled stack, {total} in all. A box is as wide as the time in it and in what it called.
Hover over a box for its name.</p>
"""


@dataclass
class Box:
    """A frame in its place in the tree, with the time in it and in what it called."""

    name: str
    total_ns: int = 0
    inside: dict[str, Box] = field(default_factory=dict)


def flame_page(threads: dict[str, Counter[tuple[str, ...]]], name: str) -> str:
    """Return the page; each rank, and each of its loader workers, is a box of the second row."""
    root = Box("all ranks")
    for thread, stacks in threads.items():
        for stack, every_ns in stacks.items():
            box = root
            box.total_ns += every_ns
            for function in (thread, *stack):
                box = box.inside.setdefault(function, Box(function))
                box.total_ns += every_ns
    rects = list(_draw(root))
    depth = max(level for level, _ in rects) + 1
    head = HEAD.format(name=escaped(name), total=duration(float(root.total_ns)))
    size = f'width="{WIDTH:g}" height="{depth * ROW}"'
    drawn = "\n".join(text for _, text in rects)
    return f"{head}<svg {size}>\n{drawn}\n</svg>\n</body></html>\n"


def escaped(name: str) -> str:
    """Return a name that neither steers a viewer nor ends an element."""
    return html.escape(safe_text(name))


def _draw(root: Box) -> Iterator[tuple[int, str]]:
    """Yield the level and the drawing of each box that is wide enough."""
    total_ns = max(1, root.total_ns)
    waiting = [(root, 0.0, 0)]
    while waiting:
        box, left, level = waiting.pop()
        width = WIDTH * box.total_ns / total_ns
        if width < LEAST_WIDTH:
            continue
        yield level, _rect(box, left, level * ROW, width, box.total_ns / total_ns)
        for inner in sorted(box.inside.values(), key=lambda each: each.name):
            waiting.append((inner, left, level + 1))
            left += WIDTH * inner.total_ns / total_ns


def _rect(box: Box, left: float, top: int, width: float, share: float) -> str:
    hue = zlib.crc32(box.name.encode("utf-8", "replace")) % 50 + 10
    time = f"{duration(float(box.total_ns))}, {percent(share)}"
    title = f"<title>{escaped(box.name)}: {time}</title>"
    place = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}"'
    label = ""
    chars = int(width / CHAR_WIDTH)
    if chars >= LEAST_CHARS:
        text = html.escape(shorten(box.name, chars))
        label = f'<text x="{left + 2:.1f}" y="{top + ROW - 5}">{text}</text>'
    return f'<rect {place} fill="hsl({hue} 80% 70%)">{title}</rect>{label}'
