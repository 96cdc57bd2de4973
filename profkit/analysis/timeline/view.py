"""What a timeline shows of a stretch of time: for each row and each cell what covers it, for how long, and what it is called."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.timeline import Timeline
from profkit.trace import Trace

SHORTEST_LABEL: Final = 3
"""Cells in a row that show the same before a name is written over them."""


@dataclass(frozen=True)
class Window:
    """A stretch of the axis, and the cells that it is cut into."""

    start_ns: int
    end_ns: int
    columns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def cell_ns(self) -> float:
        return self.length_ns / self.columns

    @property
    def borders(self) -> Ints:
        """Where cells begin and end: they tile the window, whole ns each. Divided first, for years times columns are more than 64 bits hold."""
        each, rest = divmod(self.length_ns, self.columns)
        place = np.arange(self.columns + 1)
        return self.start_ns + place * each + place * rest // self.columns

    def moved(self, by_ns: int, bounds: tuple[int, int]) -> Window:
        """As long, later or earlier, and inside the bounds."""
        start = max(bounds[0], min(self.start_ns + by_ns, bounds[1] - self.length_ns))
        return Window(start, start + self.length_ns, self.columns)

    def zoomed(self, factor: float, about_ns: int, bounds: tuple[int, int]) -> Window:
        """`factor` times as long, with the moment `about_ns` where it was; never longer than the bounds, nor less than a ns a cell."""
        length = max(self.columns, min(round(self.length_ns * factor), bounds[1] - bounds[0]))
        before = round((about_ns - self.start_ns) * length / max(1, self.length_ns))
        return Window(about_ns - before, about_ns - before + length, self.columns).moved(0, bounds)

    def around(
        self, start_ns: int, end_ns: int, bounds: tuple[int, int], share: float = 0.5
    ) -> Window:
        """A window in which a stretch takes a share of the room, in the middle."""
        whole = Window(start_ns, end_ns, self.columns)
        return whole.zoomed(1 / share, (start_ns + end_ns) // 2, bounds)

    def cell(self, column: int) -> tuple[int, int]:
        start, end = self.borders[column : column + 2]
        return int(start), int(end)

    def column_of(self, time_ns: int) -> int | None:
        """The cell that holds a moment; `None` where it is out of sight."""
        if not self.start_ns <= time_ns < self.end_ns:
            return None
        return int(np.searchsorted(self.borders, time_ns, side="right")) - 1


@dataclass(frozen=True)
class Request:
    """What is to be seen: `group` of each rank, and below the expanded rank all that it has."""

    window: Window
    ranks: Sequence[int]
    group: Group = Group.PHASES
    expanded: int | None = None
    at_least_ns: int = 0
    """What is shorter is left out."""


class Label(NamedTuple):
    """A name that stands over some cells."""

    column: int
    columns: int
    text: str


@dataclass(frozen=True, eq=False)
class Row:
    """One row. `kinds` holds for each cell a place in `kind_names`, `NONE` where nothing is."""

    rank: int
    group: Group
    label: str
    note: str
    """Why the row shows nothing, where there is a reason."""
    kind_names: tuple[str, ...]
    kinds: Ints
    dominant_ns: Ints
    covered_ns: Ints
    begun: Ints
    labels: tuple[Label, ...]


@dataclass(frozen=True, eq=False)
class CounterRow:
    """A counter of the expanded rank: the mean, smallest and largest reading by cell, NaN where none was taken."""

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
    """All that a screen of the timeline shows."""

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
    """Whether there is something still to read."""


READING: Final = "reading"
ABSENT: Final[Mapping[Group, str]] = {
    Group.PHASES: "no phases recorded",
    Group.REGIONS: "no regions recorded",
    Group.DEVICES: "no kernels captured",
    Group.STREAMS: "no kernels captured; profkit trace --kernels captures them in some steps",
    Group.COLLECTIVES: "no collectives recorded",
}
_SAID_BELOW: Final = frozenset({Group.PHASES, Group.STREAMS})
"""What is missed below an expanded rank, where it is not there."""

_EXPANDED: Final = (Group.REGIONS, Group.STREAMS, Group.COLLECTIVES)


def view_timeline(
    timeline: Timeline, request: Request, *, wait: bool = True, before: TimelineView | None = None
) -> TimelineView:
    """What is to be seen. Without `wait` nothing is read: rows that would need it say so.

    Where `before`, which was seen of the same timeline, is of the same window, its rows are taken from there.
    """
    window = request.window
    first = request.expanded if request.expanded is not None else next(iter(request.ranks), None)
    same = (
        before is not None and before.window == window and before.at_least_ns == request.at_least_ns
    )
    known = (
        {(row.rank, row.group, row.label): row for row in before.rows if not row.note}
        if before and same
        else {}
    )
    rows = tuple(
        row for rank in request.ranks for row in _rank_rows(timeline, request, rank, wait, known)
    )
    return TimelineView(
        window=window,
        bounds=timeline.bounds,
        rows=rows,
        counters=tuple(_counter_rows(timeline, request, wait)),
        steps=tuple(_step_marks(timeline, window, first)) if first is not None else (),
        steps_of=first,
        at_least_ns=request.at_least_ns,
        clocks=timeline.clocks,
        problems=timeline.problems,
        pending=any(row.note == READING for row in rows)
        or not (request.expanded is None or timeline.counters_ready(request.expanded)),
    )


EAGER_BYTES: Final = 4_000_000
"""A file that is larger is read once its rows are in view, and not before the first picture."""

MOST_RANKS_AT_ONCE: Final = 64
"""Ranks whose phases are read before the first picture."""


@dataclass(frozen=True, eq=False)
class OpenTimeline:
    """A timeline that is open, and what to show of it first."""

    timeline: Timeline
    first: Request


def open_timeline(
    trace: Trace, rank: int | None, cache: Path | None, *, columns: int
) -> OpenTimeline:
    """The whole run, its phases read, one rank expanded: the one that is named, else the first. A run without phases shows its kernels.

    The expanded rank's own lanes are read as well where that takes no time worth speaking of.
    """
    timeline = Timeline.open(trace, cache)
    expanded = rank if rank in timeline.ranks else next(iter(timeline.ranks), None)
    phases = [timeline.lanes(rank, Group.PHASES) for rank in timeline.ranks[:MOST_RANKS_AT_ONCE]]
    shown = Group.PHASES if any(phases) or not phases else Group.DEVICES
    for group in (shown, *_EXPANDED):
        if expanded is not None and (
            group is shown or timeline.bytes_of(expanded, group) < EAGER_BYTES
        ):
            timeline.lanes(expanded, group)
    if expanded is not None and timeline.bytes_of(expanded, None) < EAGER_BYTES:
        timeline.counters(expanded)
    start, end = timeline.bounds
    return OpenTimeline(
        timeline,
        Request(Window(start, max(end, start + columns), columns), timeline.ranks, shown, expanded),
    )


def still_to_read(timeline: Timeline, request: Request) -> list[Callable[[], object]]:
    """What a view of this would have to read, the most wanted first, as calls that do it."""
    rank = request.expanded
    wanted = (
        [(rank, group, request.at_least_ns) for group in (request.group, Group.PHASES, *_EXPANDED)]
        if rank is not None
        else []
    )
    wanted += [(each, request.group, request.at_least_ns) for each in request.ranks]
    calls: list[Callable[[], object]] = [
        functools.partial(timeline.lanes, *each)
        for each in dict.fromkeys(wanted)
        if not timeline.ready(*each)
    ]
    if rank is not None and not timeline.counters_ready(rank):
        calls.append(functools.partial(timeline.counters, rank))
    return calls


def _rank_rows(
    timeline: Timeline,
    request: Request,
    rank: int,
    wait: bool,
    known: Mapping[tuple[int, Group, str], Row],
) -> Iterator[Row]:
    groups = [request.group]
    if rank == request.expanded:
        groups += [
            group
            for group in (Group.PHASES, *_EXPANDED)
            if group is not request.group and not _same(timeline, request, rank, group)
        ]
    for group in groups:
        if not wait and not timeline.ready(rank, group, request.at_least_ns):
            yield _empty(request, rank, group, READING)
            continue
        lanes = timeline.lanes(rank, group, request.at_least_ns)
        if not lanes and (group is request.group or group in _SAID_BELOW):
            yield _empty(request, rank, group, ABSENT[group])
        for lane in lanes:
            yield known.get((rank, lane.group, lane.label)) or _row(timeline, request, rank, lane)


def _same(timeline: Timeline, request: Request, rank: int, group: Group) -> bool:
    """Whether a group's rows would repeat those that are shown already: streams of devices that have one each."""
    at_least_ns = request.at_least_ns
    if (
        request.group is not Group.DEVICES
        or group is not Group.STREAMS
        or not timeline.ready(rank, group, at_least_ns)
    ):
        return False
    return len(timeline.lanes(rank, request.group, at_least_ns)) == len(
        timeline.lanes(rank, group, at_least_ns)
    )


def _empty(request: Request, rank: int, group: Group, note: str) -> Row:
    nothing = np.zeros(request.window.columns, dtype=np.int64)
    return Row(rank, group, group.value, note, (), nothing + NONE, nothing, nothing, nothing, ())


def _row(timeline: Timeline, request: Request, rank: int, lane: Lane) -> Row:
    borders = request.window.borders - timeline.shift(rank)
    level = lane.level
    cells = level.cells(borders)
    fills_some = (
        not cells.begun.all()
    )  # what fills several cells leaves some in which nothing begins
    pieces = (
        level.at((borders[:-1] + borders[1:]) // 2)
        if fills_some
        else np.full(len(cells.kinds), NONE)
    )
    labels = tuple(_labels(timeline, rank, lane, cells.kinds, pieces))
    return Row(
        rank,
        lane.group,
        lane.label,
        "",
        level.kinds,
        cells.kinds,
        cells.dominant_ns,
        cells.covered_ns,
        cells.begun,
        labels,
    )


def _labels(
    timeline: Timeline, rank: int, lane: Lane, kinds: Ints, pieces: Ints
) -> Iterator[Label]:
    """The event's name where one event fills some cells, else the kind's where many of a kind do."""
    unnamed = kinds.copy()
    for first, last in _long_runs(np.where(kinds == NONE, NONE, pieces)):
        yield Label(first, last - first, timeline.name(rank, lane, int(pieces[first])))
        unnamed[first:last] = NONE
    for first, last in _long_runs(unnamed):
        yield Label(first, last - first, lane.level.kinds[unnamed[first]])


def _long_runs(values: Ints) -> Iterator[tuple[int, int]]:
    """From where to where neighbours are equal and something, where there are enough of them for a name."""
    borders = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
    wide = (np.diff(borders) >= SHORTEST_LABEL) & (values[borders[:-1]] != NONE)
    return zip(borders[:-1][wide].tolist(), borders[1:][wide].tolist(), strict=True)


def _counter_rows(timeline: Timeline, request: Request, wait: bool) -> Iterator[CounterRow]:
    rank = request.expanded
    if rank is None or not (wait or timeline.counters_ready(rank)):
        return
    borders = request.window.borders - timeline.shift(rank)
    for counter in timeline.counters(rank):
        yield CounterRow(
            rank,
            counter.device,
            counter.metric,
            *counter.cells(borders),
            counter.before(int(borders[0])),
        )


def _step_marks(timeline: Timeline, window: Window, rank: int) -> Iterator[StepMark]:
    steps = timeline.steps(rank)
    place = np.searchsorted(steps.start_ns, window.borders)
    for column in np.flatnonzero(np.diff(place)):
        yield StepMark(int(column), int(steps.number[place[column]]))


def as_json(view: TimelineView) -> dict[str, Any]:
    """The same figures for machines, a list a row with one entry a cell; null where nothing is or was measured."""
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
        "rows": [_row_json(row) for row in view.rows],
        "counters": [_counter_json(row) for row in view.counters],
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "group": row.group.value,
        "label": row.label,
        "note": row.note,
        "kind": [None if kind == NONE else row.kind_names[kind] for kind in row.kinds.tolist()],
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
