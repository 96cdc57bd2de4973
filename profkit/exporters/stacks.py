"""Stacks as a flame graph: a page, collapsed lines, and a file for speedscope.

The window holds samples of the training thread, if the run recorded them: `--collect
usual,stacks`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from profkit.analysis.columns import rows_of_rank
from profkit.analysis.stack_samples import PROMPT_NS, SWITCH_NS, FrameTree
from profkit.errors import UsageError
from profkit.exporters._flame import flame_page
from profkit.exporters.base import Window
from profkit.version import __version__

NOT_STORED = "(stack not stored)"
LATE = "(late sample: line not known)"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[str, ...]


class Stacks:
    """A folder: `collapsed.txt` and `flame.html` for all ranks, `speedscope.json` by rank."""

    name = "stacks"
    title = "collapsed stacks and speedscope"
    suffix = ""
    is_folder = True
    name_copies = 0
    row_bytes = MappingProxyType({"stacks": 24, "frames": 100})

    def write(self, window: Window, path: Path) -> None:
        ranks = read_stacks(window)
        if not any(ranks.values()):
            raise UsageError(
                "no stacks were sampled in these steps; record with --collect usual,stacks, "
                "or choose others with --steps"
            )
        path.mkdir(mode=0o700)
        text = "".join(f"{line}\n" for line in collapsed(ranks))
        (path / "collapsed.txt").write_text(text, encoding="utf-8")
        content = json.dumps(speedscope(ranks, window.trace.name))
        (path / "speedscope.json").write_text(content, encoding="utf-8")
        page = flame_page(ranks, window.trace.name)
        (path / "flame.html").write_text(page, encoding="utf-8")


def read_stacks(window: Window) -> dict[int, Counter[Stack]]:
    """Return the time in ns of each stack of each rank, outermost frame first."""
    samples, frames = window.tables["stacks"], window.tables["frames"]
    found: dict[int, Counter[Stack]] = {}
    for rank in np.unique(samples["rank"].to_numpy()).tolist():
        own, tree = rows_of_rank(samples, rank), FrameTree(rows_of_rank(frames, rank))
        found[rank] = Counter()
        ids, late = own["stack"].fill_null(-1).to_numpy(), own["late_ns"].to_numpy()
        is_unsure = (late >= PROMPT_NS) & (late < SWITCH_NS)
        for leaf in np.unique(ids).tolist():
            words = _words(tree, leaf)
            for stack, rows in (
                (words, (ids == leaf) & ~is_unsure),
                ((*words, LATE), (ids == leaf) & is_unsure),
            ):
                found[rank][stack] += int(own["every_ns"].to_numpy()[rows].sum())
        found[rank] = +found[rank]
    return found


def _words(tree: FrameTree, leaf: int) -> Stack:
    places = [tree.place(frame) for frame in tree.walk(leaf)]
    if not places:
        return (NOT_STORED,)
    return tuple(f"{each.function} ({each.file}:{each.line})" for each in reversed(places))


def collapsed(ranks: dict[int, Counter[Stack]]) -> list[str]:
    """Return a line per stack, frames separated by `;`, with its time in microseconds."""
    lines = []
    for rank, stacks in ranks.items():
        for stack, every_ns in sorted(stacks.items()):
            frames = [frame.replace(";", ":") for frame in stack]
            lines.append(f"{';'.join((f'rank {rank}', *frames))} {every_ns // 1000}")
    return lines


def speedscope(ranks: dict[int, Counter[Stack]], name: str) -> dict[str, Any]:
    """Return the content of a speedscope file: a sampled profile per rank."""
    places: dict[str, int] = {}
    profiles = []
    for rank, stacks in ranks.items():
        rows = []
        for stack in stacks:
            rows.append([places.setdefault(frame, len(places)) for frame in stack])
        weights = list(stacks.values())
        profile = {"type": "sampled", "name": f"rank {rank}", "unit": "nanoseconds"}
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
