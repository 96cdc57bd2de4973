"""View of a timeline over a stretch of time: what covers each cell of each row, and its name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.window import Window

SHORTEST_LABEL: Final = 3
"""A name is written over at least this many cells that show the same."""


@dataclass(frozen=True)
class Request:
    """The rows to show: `group` of each rank, and below the expanded rank all that it has."""

    window: Window
    ranks: Sequence[int]
    group: Group = Group.PHASES
    expanded: int | None = None
    at_least_ns: int = 0
    """Shorter pieces are excluded."""


class Label(NamedTuple):
    """A name over some cells."""

    column: int
    columns: int
    text: str


@dataclass(frozen=True, eq=False)
class Row:
    """One row. `kinds` holds each cell's place in `kind_names`, `NONE` if it is empty."""

    rank: int
    group: Group
    label: str
    note: str
    """Why the row shows nothing, if there is a reason."""
    kind_names: tuple[str, ...]
    kinds: Ints
    dominant_ns: Ints
    covered_ns: Ints
    begun: Ints
    labels: tuple[Label, ...]


@dataclass(frozen=True, eq=False)
class CounterRow:
    """A counter of the expanded rank: mean, smallest and largest reading per cell, or NaN."""

    rank: int
    device: str
    metric: str
    means: Floats
    lows: Floats
    highs: Floats
    before: float
    """The last reading before the window."""


class StepMark(NamedTuple):
    """The first step that begins in a cell."""

    column: int
    step: int


@dataclass(frozen=True, eq=False)
class TimelineView:
    """Everything that a screen of the timeline shows."""

    window: Window
    bounds: tuple[int, int]
    rows: tuple[Row, ...]
    counters: tuple[CounterRow, ...]
    steps: tuple[StepMark, ...]
    steps_of: int | None
    """The rank whose steps the ruler shows."""
    at_least_ns: int
    clocks: str
    problems: tuple[str, ...]
    pending: bool
    """True if something is still to be read."""


READING: Final = "reading"
ABSENT: Final[Mapping[Group, str]] = {
    Group.PHASES: "no phases recorded",
    Group.REGIONS: "no regions recorded",
    Group.DEVICES: "no kernels captured",
    Group.STREAMS: "no kernels captured; profkit trace --kernels captures them in some steps",
    Group.COLLECTIVES: "no collectives recorded",
}
_MISSED_BELOW: Final = frozenset({Group.PHASES, Group.STREAMS})
"""Groups below an expanded rank whose absence is reported."""

EXPANDED: Final = (Group.REGIONS, Group.STREAMS, Group.COLLECTIVES)
"""Groups that an expanded rank shows in addition."""


def view_timeline(
    timeline: Timeline, request: Request, *, wait: bool = True, before: TimelineView | None = None
) -> TimelineView:
    """Return the view. Without `wait` nothing is read: rows that would need it report so.

    If `before` is a view of the same timeline and window, its rows are reused.
    """
    window, first = request.window, request.expanded
    if first is None:
        first = next(iter(request.ranks), None)
    known: dict[tuple[int, Group, str], Row] = {}
    if before and (before.window, before.at_least_ns) == (window, request.at_least_ns):
        for row in before.rows:
            if not row.note:
                known[row.rank, row.group, row.label] = row
    rows: list[Row] = []
    for rank in request.ranks:
        rows += _rank_rows(timeline, request, rank, wait, known)
    counters = tuple(_counter_rows(timeline, request, wait))
    pending = any(row.note == READING for row in rows)
    if request.expanded is not None and not timeline.counters_ready(request.expanded):
        pending = True
    return TimelineView(
        window=window,
        bounds=timeline.bounds,
        rows=tuple(rows),
        counters=counters,
        steps=() if first is None else tuple(_step_marks(timeline, window, first)),
        steps_of=first,
        at_least_ns=request.at_least_ns,
        clocks=timeline.clocks,
        problems=timeline.problems,
        pending=pending,
    )


def _rank_rows(
    timeline: Timeline,
    request: Request,
    rank: int,
    wait: bool,
    known: Mapping[tuple[int, Group, str], Row],
) -> Iterator[Row]:
    for group in _groups(timeline, request, rank):
        if not wait and not timeline.ready(rank, group, request.at_least_ns):
            yield _empty(request, rank, group, READING)
            continue
        lanes = timeline.lanes(rank, group, request.at_least_ns)
        if not lanes and (group is request.group or group in _MISSED_BELOW):
            yield _empty(request, rank, group, ABSENT[group])
        for lane in lanes:
            yield known.get((rank, lane.group, lane.label)) or _row(timeline, request, rank, lane)


def _groups(timeline: Timeline, request: Request, rank: int) -> list[Group]:
    """Return the groups of rows that a rank shows."""
    groups = [request.group]
    if rank != request.expanded:
        return groups
    for group in (Group.PHASES, *EXPANDED):
        if group not in groups and not _repeats(timeline, request, rank, group):
            groups.append(group)
    return groups


def _repeats(timeline: Timeline, request: Request, rank: int, group: Group) -> bool:
    """Return True if devices that are shown have one stream each, so that streams repeat them."""
    if (request.group, group) != (Group.DEVICES, Group.STREAMS):
        return False
    if not timeline.ready(rank, group, request.at_least_ns):
        return False
    devices = timeline.lanes(rank, request.group, request.at_least_ns)
    return len(devices) == len(timeline.lanes(rank, group, request.at_least_ns))


def _empty(request: Request, rank: int, group: Group, note: str) -> Row:
    nothing = np.zeros(request.window.columns, dtype=np.int64)
    return Row(rank, group, group.value, note, (), nothing + NONE, nothing, nothing, nothing, ())


def _row(timeline: Timeline, request: Request, rank: int, lane: Lane) -> Row:
    borders = request.window.borders - timeline.shift(rank)
    cells = lane.level.cells(borders)
    pieces = np.full(len(cells.kinds), NONE)
    # A piece that fills several cells leaves some in which nothing begins.
    if not cells.begun.all():
        pieces = lane.level.at((borders[:-1] + borders[1:]) // 2)
    labels = tuple(_labels(timeline, rank, lane, cells.kinds, pieces))
    return Row(rank, lane.group, lane.label, "", lane.level.kinds, *cells, labels)


def _labels(
    timeline: Timeline, rank: int, lane: Lane, kinds: Ints, pieces: Ints
) -> Iterator[Label]:
    """Yield the name of an event that fills several cells, or the kind that fills several."""
    unnamed = kinds.copy()
    for first, last in _long_runs(np.where(kinds == NONE, NONE, pieces)):
        yield Label(first, last - first, timeline.name(rank, lane, int(pieces[first])))
        unnamed[first:last] = NONE
    for first, last in _long_runs(unnamed):
        yield Label(first, last - first, lane.level.kinds[unnamed[first]])


def _long_runs(values: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first and last place of equal neighbours, if a name has room over them."""
    borders = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
    wide = (np.diff(borders) >= SHORTEST_LABEL) & (values[borders[:-1]] != NONE)
    return zip(borders[:-1][wide].tolist(), borders[1:][wide].tolist(), strict=True)


def _counter_rows(timeline: Timeline, request: Request, wait: bool) -> Iterator[CounterRow]:
    rank = request.expanded
    if rank is None or not (wait or timeline.counters_ready(rank)):
        return
    borders = request.window.borders - timeline.shift(rank)
    for counter in timeline.counters(rank):
        cells, before = counter.cells(borders), counter.before(int(borders[0]))
        yield CounterRow(rank, counter.device, counter.metric, *cells, before)


def _step_marks(timeline: Timeline, window: Window, rank: int) -> Iterator[StepMark]:
    steps = timeline.steps(rank)
    place = np.searchsorted(steps.start_ns, window.borders)
    for column in np.flatnonzero(np.diff(place)):
        yield StepMark(int(column), int(steps.number[place[column]]))


def as_json(view: TimelineView) -> dict[str, Any]:
    """Return the view for machines: a list per row with one entry per cell, null if empty."""
    return {
        "start_ns": view.window.start_ns,
        "end_ns": view.window.end_ns,
        "columns": view.window.columns,
        "run_start_ns": view.bounds[0],
        "run_end_ns": view.bounds[1],
        "at_least_ns": view.at_least_ns,
        "clocks": view.clocks,
        "problems": list(view.problems),
        "steps_of_rank": view.steps_of,
        "steps": [mark._asdict() for mark in view.steps],
        "rows": list(map(_row_json, view.rows)),
        "counters": list(map(_counter_json, view.counters)),
    }


def _row_json(row: Row) -> dict[str, Any]:
    kinds = (*row.kind_names, None)  # `NONE` is the last place
    return {
        "rank": row.rank,
        "group": row.group.value,
        "label": row.label,
        "note": row.note,
        "kind": [kinds[kind] for kind in row.kinds.tolist()],
        "kind_ns": row.dominant_ns.tolist(),
        "covered_ns": row.covered_ns.tolist(),
        "events_begun_count": row.begun.tolist(),
        "labels": [label._asdict() for label in row.labels],
    }


def _counter_json(row: CounterRow) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "device": row.device or None,
        "metric": row.metric,
        "mean": _or_null(row.means),
        "lowest": _or_null(row.lows),
        "highest": _or_null(row.highs),
        "last_before": None if math.isnan(row.before) else row.before,
    }


def _or_null(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
