"""Stacks as a flame graph: a page, collapsed lines, and a file for speedscope.

The window holds samples of the training thread, if the run recorded them: `--stacks loop`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import equals, rows_of_rank
from profkit.analysis.stack_samples import UNSURE, FrameTree, kinds_of, times_of
from profkit.exporters._flame import flame_page
from profkit.exporters.base import Window
from profkit.version import __version__

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
        workers = window.worker_stacks
        if window.tables["stacks"].num_rows or (workers is not None and workers.num_rows):
            return ""
        return (
            "no stacks were sampled in these steps; record with --stacks loop, "
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
        found[f"rank {rank}"] = _count(rows_of_rank(samples, rank), tree)
    workers = window.worker_stacks
    if workers is None:
        return found
    frames = window.trace.worker_stacks.frames
    for rank in np.unique(workers["rank"].to_numpy()).tolist():
        tree = FrameTree(rows_of_rank(frames, rank))
        own = rows_of_rank(workers, rank)
        for thread in pc.unique(own["thread"]).to_pylist():
            rows = own.filter(equals(own["thread"], thread))
            found[f"rank {rank}, {thread}"] = _count(rows, tree)
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
