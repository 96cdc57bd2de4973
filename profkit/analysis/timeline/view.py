"""View of a timeline over a stretch of time: what covers each cell of each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from profkit.analysis.change_words import say_change
from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.window import Window
from profkit.frame.estimate import Floats, Ints

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

    def as_json(self) -> dict[str, Any]:
        kinds = (*self.kind_names, None)  # `NONE` is the last place
        return {
            "rank": self.rank,
            "group": self.group.value,
            "label": self.label,
            "note": self.note,
            "kind": [kinds[kind] for kind in self.kinds.tolist()],
            "kind_ns": self.dominant_ns.tolist(),
            "covered_ns": self.covered_ns.tolist(),
            "events_begun_count": self.begun.tolist(),
            "labels": list(map(Label._asdict, self.labels)),
        }


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

    def as_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "device": self.device or None,
            "metric": self.metric,
            "mean": _or_null(self.means),
            "lowest": _or_null(self.lows),
            "highest": _or_null(self.highs),
            "last_before": None if math.isnan(self.before) else self.before,
        }


class StepMark(NamedTuple):
    """The first step that begins in a cell."""

    column: int
    step: int


class ChangeMark(NamedTuple):
    """The cell in which the step time changes, and the change as a sentence."""

    column: int
    step: int
    words: str


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
    changes: tuple[ChangeMark, ...] = ()
    """The changes of the step time in view, as far as they were looked for."""


READING: Final = "reading"
ABSENT: Final[Mapping[Group, str]] = {
    Group.PHASES: "no phases recorded",
    Group.REGIONS: "no regions recorded",
    Group.DEVICES: "no kernels captured",
    Group.STREAMS: "no kernels captured; profkit run --kernels 20:23 captures them",
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
    steps: tuple[StepMark, ...] = ()
    if first is not None:
        marks = timeline.steps(first).first_in_cells(window.borders)
        steps = tuple(StepMark(*mark) for mark in marks)
    pending = any(row.note == READING for row in rows)
    if request.expanded is not None and not timeline.counters_ready(request.expanded):
        pending = True
    return TimelineView(
        window=window,
        bounds=timeline.bounds,
        rows=tuple(rows),
        counters=counters,
        steps=steps,
        steps_of=first,
        at_least_ns=request.at_least_ns,
        clocks=timeline.clocks,
        problems=timeline.problems,
        pending=pending,
        changes=tuple(_change_marks(timeline, window)),
    )


def _change_marks(timeline: Timeline, window: Window) -> Iterator[ChangeMark]:
    """Yield the changes that begin in the window."""
    for change in timeline.changes:
        bounds = timeline.step_bounds(change.first_step)
        column = window.column_of(bounds[0]) if bounds else None
        if column is not None:
            yield ChangeMark(column, change.first_step, say_change(change))


def _rank_rows(
    timeline: Timeline,
    request: Request,
    rank: int,
    wait: bool,
    known: Mapping[tuple[int, Group, str], Row],
) -> Iterator[Row]:
    """Yield the rows of one rank; those in `known` are reused."""
    groups = [request.group]
    if rank == request.expanded:
        groups += [group for group in (Group.PHASES, *EXPANDED) if group is not request.group]
        if _streams_repeat_devices(timeline, request, rank):
            groups.remove(Group.STREAMS)
    for group in groups:
        if not wait and not timeline.ready(rank, group, request.at_least_ns):
            yield _empty(request, rank, group, READING)
            continue
        lanes = timeline.lanes(rank, group, request.at_least_ns)
        if not lanes and (group is request.group or group in _MISSED_BELOW):
            yield _empty(request, rank, group, ABSENT[group])
        for lane in lanes:
            yield known.get((rank, lane.group, lane.label)) or _row(timeline, request, rank, lane)


def _streams_repeat_devices(timeline: Timeline, request: Request, rank: int) -> bool:
    """Return True if devices are shown and have one stream each."""
    at_least_ns = request.at_least_ns
    if request.group is not Group.DEVICES:
        return False
    if not timeline.ready(rank, Group.STREAMS, at_least_ns):
        return False
    devices = timeline.lanes(rank, Group.DEVICES, at_least_ns)
    return len(devices) == len(timeline.lanes(rank, Group.STREAMS, at_least_ns))


def _empty(request: Request, rank: int, group: Group, note: str) -> Row:
    nothing = np.zeros(request.window.columns, dtype=np.int64)
    return Row(rank, group, group.value, note, (), nothing + NONE, nothing, nothing, nothing, ())


def _row(timeline: Timeline, request: Request, rank: int, lane: Lane) -> Row:
    """Return a lane's row, with the name of each event or kind that fills several cells."""
    level, borders = lane.level, request.window.borders - timeline.shift(rank)
    cells = level.cells(borders)
    labels = []
    unnamed = cells.kinds.copy()
    # An event that fills several cells leaves some in which nothing begins.
    if not cells.begun.all():
        pieces = level.at((borders[:-1] + borders[1:]) // 2)
        for first, last in _long_runs(np.where(cells.kinds == NONE, NONE, pieces)):
            labels.append(Label(first, last - first, timeline.name(rank, lane, pieces[first])))
            unnamed[first:last] = NONE
    for first, last in _long_runs(unnamed):
        labels.append(Label(first, last - first, level.kinds[unnamed[first]]))
    return Row(rank, lane.group, lane.label, "", level.kinds, *cells, tuple(labels))


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
        "steps": list(map(StepMark._asdict, view.steps)),
        "changes": list(map(ChangeMark._asdict, view.changes)),
        "rows": list(map(Row.as_json, view.rows)),
        "counters": list(map(CounterRow.as_json, view.counters)),
    }


def _or_null(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
