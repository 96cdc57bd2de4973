"""Stacks as a flame graph: a page, collapsed lines, and a file for speedscope.

The window holds samples of the training thread and the loader's workers, if there are any.
"""

from __future__ import annotations

import html
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.stack_samples import UNSURE, FrameTree, kinds_of, times_of
from profkit.exporters.base import Window
from profkit.frame.columns import equals, rows_of_rank
from profkit.text import duration, percent, safe_text, shorten
from profkit.version import __version__
from profkit.vocab import LOADER_WORKER

NOT_STORED = "(stack not stored)"
LATE = "(late sample: line not known)"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[str, ...]


class Stacks:
    """A folder: `collapsed.txt` and `flame.html` for all ranks, `speedscope.json` by thread."""

    name = "stacks"
    title = "collapsed stacks and speedscope"
    suffix = ""
    is_folder = True
    name_copies = 0
    row_bytes = MappingProxyType({"stacks": 24, "frames": 100})

    def why_not(self, window: Window) -> str:
        if window.tables["stacks"].num_rows:
            return ""
        return (
            "no stacks were sampled in these steps; record with --lines on, "
            "or choose others with --steps"
        )

    def write(self, window: Window, path: Path) -> None:
        threads = read_stacks(window)
        path.mkdir(mode=0o700)
        text = "".join(f"{line}\n" for line in collapsed(threads))
        (path / "collapsed.txt").write_text(text, encoding="utf-8")
        content = json.dumps(speedscope(threads, window.trace.name))
        (path / "speedscope.json").write_text(content, encoding="utf-8")
        page = flame_page(threads, window.trace.name)
        (path / "flame.html").write_text(page, encoding="utf-8")


def read_stacks(window: Window) -> dict[str, Counter[Stack]]:
    """Return the time in ns of each stack, outermost frame first, by rank and loader worker."""
    found: dict[str, Counter[Stack]] = {}
    samples, frames = window.tables["stacks"], window.tables["frames"]
    for rank in np.unique(samples["rank"].to_numpy()).tolist():
        tree = FrameTree(rows_of_rank(frames, rank))
        own = rows_of_rank(samples, rank)
        for thread in pc.unique(own["thread"]).to_pylist():
            name = f"rank {rank}"
            if thread.startswith(LOADER_WORKER):
                name += f", {thread}"
            rows = own.filter(equals(own["thread"], thread))
            found[name] = found.get(name, Counter()) + _count(rows, tree)
    return found


def _count(samples: pa.Table, tree: FrameTree) -> Counter[Stack]:
    """Return the time of each stack; the line of a late sample is in a box of its own."""
    ids = samples["stack"].fill_null(-1).to_numpy()
    is_unsure = kinds_of(samples["late_ns"].to_numpy()) == UNSURE
    pairs, back = np.unique(np.stack([ids, is_unsure]), axis=1, return_inverse=True)
    weights = times_of(samples)
    sums = np.bincount(np.ravel(back), weights=weights, minlength=pairs.shape[1])
    found: Counter[Stack] = Counter()
    for (leaf, unsure), total in zip(pairs.T.tolist(), sums.tolist(), strict=True):
        places = map(tree.place, reversed(list(tree.walk(leaf))))
        words = tuple(f"{each.function} ({each.file}:{each.line})" for each in places)
        words = words or (NOT_STORED,)
        found[(*words, LATE) if unsure else words] += int(total)
    return found


def collapsed(threads: dict[str, Counter[Stack]]) -> list[str]:
    """Return a line per stack, frames separated by `;`, with its time in microseconds."""
    lines = []
    for thread, stacks in threads.items():
        for stack, every_ns in sorted(stacks.items()):
            frames = [frame.replace(";", ":") for frame in stack]
            lines.append(f"{';'.join((thread, *frames))} {every_ns // 1000}")
    return lines


def speedscope(threads: dict[str, Counter[Stack]], name: str) -> dict[str, Any]:
    """Return the content of a speedscope file: a sampled profile per thread."""
    places: dict[str, int] = {}
    profiles = []
    for thread, stacks in threads.items():
        rows = []
        for stack in stacks:
            rows.append([places.setdefault(frame, len(places)) for frame in stack])
        weights = list(stacks.values())
        profile = {"type": "sampled", "name": thread, "unit": "nanoseconds"}
        bounds = {"startValue": 0, "endValue": sum(weights)}
        profiles.append({**profile, **bounds, "samples": rows, "weights": weights})
    frames = [{"name": place} for place in places]
    return {
        "$schema": SCHEMA,
        "name": name,
        "exporter": f"profkit {__version__}",
        "shared": {"frames": frames},
        "profiles": profiles,
    }


EXPORTER = Stacks()


WIDTH, ROW = 1200.0, 18
# A flame graph as one HTML page, without a script.
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
