"""Some steady steps of the slowest ranks, as a picture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profkit.analysis.timeline.lanes import Group
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import Request, Row, view_timeline
from profkit.analysis.timeline.window import Window
from profkit.show.document import Lane, Lanes, Section
from profkit.trace import Trace

MOST_RANKS = 4
COLUMNS = 500
"""Cells of the picture; shorter work than one of them shares it with others."""

_SHOWN = (Group.PHASES, Group.STREAMS)


def steady_lanes(trace: Trace) -> Lanes | None:
    """Return what the slowest ranks do in three usual steps; `None` without steps or phases."""
    timeline = Timeline(trace)
    stretch = timeline.steady_stretch()
    if stretch is None:
        return None
    ranks = timeline.slowest_first()[:MOST_RANKS]
    window = Window(*stretch, COLUMNS)
    view = view_timeline(timeline, Request(window, ranks, expanded=ranks[0]))
    found = []
    for row in view.rows:
        if row.group in _SHOWN and not row.note:
            name = f"rank {row.rank}" if row.group is Group.PHASES else row.label
            if pieces := tuple(_pieces(row, window)):
                found.append(Lane(name, pieces))
    if not found:
        return None
    begins = timeline.steps(ranks[0]).start_ns
    inside = begins[(begins > window.start_ns) & (begins < window.end_ns)]
    return Lanes(*stretch, tuple(found), tuple(inside.tolist()))


def _pieces(row: Row, window: Window) -> Iterator[tuple[str, int, int]]:
    """Yield neighbouring cells of one kind as one piece, without those that are mostly empty."""
    kinds = np.where(2 * row.covered_ns >= np.diff(window.borders), row.kinds, NONE)
    ends = np.concatenate([np.flatnonzero(np.diff(kinds)) + 1, [len(kinds)]])
    first = 0
    for end in ends.tolist():
        if kinds[first] != NONE:
            begin_ns, end_ns = window.borders[[first, end]].tolist()
            yield row.kind_names[kinds[first]], begin_ns, end_ns
        first = end


def steady_section(lanes: Lanes | None) -> Iterator[Section]:
    if lanes is not None:
        steps = len(lanes.steps_ns) + 1
        note = f"{steps} usual steps of the slowest rank, late in the run."
        yield Section("A few steps", (note,), (("", lanes),))
