"""Opens a timeline on some steady steps, and reads in advance what it will show."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profkit.analysis.timeline.lanes import Group
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import EXPANDED, Request
from profkit.analysis.timeline.window import Window
from profkit.trace import Trace
from profkit.vocab import RunState

EAGER_BYTES: Final = 4_000_000
"""A larger file is read when its rows are in view, and not before the first picture."""

MOST_RANKS_AT_ONCE: Final = 64
"""The phases of this many ranks are read before the first picture."""


@dataclass(frozen=True, eq=False)
class OpenTimeline:
    """An open timeline, and what to show of it first."""

    timeline: Timeline
    first: Request


def open_timeline(
    trace: Trace, rank: int | None, cache: Path | None, *, columns: int
) -> OpenTimeline:
    """Open some steps with their phases read and one rank expanded, by default the first.

    A run without phases shows its kernels. The expanded rank's own lanes are read as well if that
    takes no noticeable time.
    """
    timeline = Timeline(trace, cache)
    expanded = rank if rank in timeline.ranks else next(iter(timeline.ranks), None)
    phases = [timeline.lanes(rank, Group.PHASES) for rank in timeline.ranks[:MOST_RANKS_AT_ONCE]]
    shown = Group.PHASES
    if phases and not any(phases):
        shown = Group.DEVICES
    if expanded is not None:
        timeline.lanes(expanded, shown)
        for group in EXPANDED:
            if timeline.bytes_of(expanded, group) < EAGER_BYTES:
                timeline.lanes(expanded, group)
        if timeline.bytes_of(expanded, None) < EAGER_BYTES:
            timeline.counters(expanded)
    start, end = timeline.bounds
    if trace.manifest.state is not RunState.RUNNING:  # whoever follows a run sees it grow
        start, end = timeline.steady_stretch() or (start, end)
    window = Window(start, max(end, start + columns), columns)
    return OpenTimeline(timeline, Request(window, timeline.ranks, shown, expanded))


def still_to_read(timeline: Timeline, request: Request) -> list[Callable[[], object]]:
    """Return what a view of this would have to read, as calls, the most urgent first."""
    wanted = []
    if request.expanded is not None:
        for group in (request.group, Group.PHASES, *EXPANDED):
            wanted.append((request.expanded, group))
    for rank in request.ranks:
        wanted.append((rank, request.group))
    calls: list[Callable[[], object]] = []
    for rank, group in dict.fromkeys(wanted):
        if not timeline.ready(rank, group, request.at_least_ns):
            calls.append(functools.partial(timeline.lanes, rank, group, request.at_least_ns))
    if request.expanded is not None and not timeline.counters_ready(request.expanded):
        calls.append(functools.partial(timeline.counters, request.expanded))
    return calls
