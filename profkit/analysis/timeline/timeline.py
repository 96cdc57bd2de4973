"""A run over time, with its ranks next to each other, read as far as somebody looks at it.

Opening reads the steps alone. The lanes of a rank's table are made when a view first shows them, or
ahead of that by another thread; a view that may not wait reports what is still to be read. Times of
the axis are ns since the run's first step, over all ranks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.run_change import RunChange
from profkit.analysis.run_changes import find_changes
from profkit.analysis.timeline.clocks import align_clocks
from profkit.analysis.timeline.counters import COLUMNS as SAMPLE_COLUMNS
from profkit.analysis.timeline.counters import Counter, counters_of
from profkit.analysis.timeline.lane_store import LaneStore
from profkit.analysis.timeline.lanes import COLUMNS, TABLE_OF, Group, Lane
from profkit.analysis.timeline.levels import Gap, nearest
from profkit.frame.device_times import is_own
from profkit.frame.estimate import Ints
from profkit.frame.exchange import match_collectives
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import including_batches
from profkit.trace import Trace
from profkit.trace.reader import RankTrace

FARTHEST_NS = 2**60
"""Thirty-six years: events farther away are damage and do not stretch the axis."""


SHOWN_STEPS = 3
FEWEST_STEADY = 4 * SHOWN_STEPS
"""A run of fewer steps is shown as a whole at first."""


class Steps(NamedTuple):
    """A rank's steps in order, on the axis."""

    number: Ints
    start_ns: Ints
    end_ns: Ints

    def first_in_cells(self, borders: Ints) -> Iterator[tuple[int, int]]:
        """Yield each cell in which a step begins, with the number of the first one."""
        place = np.searchsorted(self.start_ns, borders)
        for cell in np.flatnonzero(np.diff(place)):
            yield int(cell), int(self.number[place[cell]])


def _median_ns(steps: Steps) -> float:
    return float(np.median(steps.end_ns - steps.start_ns)) if len(steps.number) else 0.0


@dataclass(frozen=True)
class Event:
    """One event in full. `fields` are the columns of its table that are not null."""

    rank: int
    group: Group
    label: str
    name: str
    kind: str
    start_ns: int
    began_ns: int
    """The start on the rank's own clock, which `fields` use as well."""
    duration_ns: int
    fields: Mapping[str, Any]


class _Place(NamedTuple):
    """A rank, and what to add to its clock to get to the axis."""

    trace: RankTrace
    shift: int


class Timeline:
    """A run that is open for looking at. Several threads may use it."""

    def __init__(self, trace: Trace, cache: Path | None = None) -> None:
        """Read the steps of all ranks. Lanes of large tables are kept in the folder `cache`."""
        self.trace = trace
        self.changes: tuple[RunChange, ...] = ()
        """The changes of the step time, once `prepare` has found them."""
        self._problems: dict[tuple[int, str], str] = {}
        self._counters: dict[int, tuple[Counter, ...]] = {}
        ranks = {rank.rank: rank for rank in trace.ranks}
        self._store = LaneStore(ranks, cache, self._problems, own=is_own(trace))
        shifts, self.clocks = align_clocks(trace)
        """How the ranks' clocks were brought together."""
        steps: dict[int, Steps] = {}
        starts: list[int] = []
        for rank in trace.ranks:
            own = steps[rank.rank] = self._read_steps(rank, shifts[rank.rank])
            if len(own.number):
                starts.append(int(own.start_ns[0]))
        if not starts:
            # A run without steps begins with its first event.
            for rank, table in itertools.product(trace.ranks, COLUMNS):
                rows, _ = rank.select(table, ("start_ns",))
                if rows.num_rows:
                    first_ns = int(rows["start_ns"].to_numpy().min())
                    starts.append(first_ns + shifts[rank.rank])
        origin = min(starts, default=0)
        self._ranks: dict[int, _Place] = {}
        self._steps: dict[int, Steps] = {}
        for rank in trace.ranks:
            self._ranks[rank.rank] = _Place(rank, shifts[rank.rank] - origin)
            number, start_ns, end_ns = steps[rank.rank]
            self._steps[rank.rank] = Steps(number, start_ns - origin, end_ns - origin)

    def _read_steps(self, rank: RankTrace, shift: int) -> Steps:
        rows, self._problems[rank.rank, "steps"] = rank.select(
            "steps", ("step", "start_ns", "end_ns")
        )
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        order = np.argsort(start, kind="stable")
        return Steps(rows["step"].to_numpy()[order], start[order] + shift, end[order] + shift)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self._ranks)

    @property
    def problems(self) -> tuple[str, ...]:
        """Damage in the tables that were read so far."""
        found = []
        for (rank, table), problem in self._problems.items():
            if problem:
                found.append(f"rank {rank}, {table}: {problem}")
        return tuple(found)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last moment of what was read so far."""
        starts, ends = [], []
        for steps in self._steps.values():
            if len(steps.number):
                starts.append(int(steps.start_ns[0]))
                ends.append(int(steps.end_ns.max()))
        for rank, lane in self._store.loaded():
            pieces = lane.level.pieces
            if len(pieces):
                starts.append(int(pieces.starts[0]) + self.shift(rank))
                ends.append(int(pieces.ends[-1]) + self.shift(rank))
        return max(min(starts, default=0), -FARTHEST_NS), min(max(ends, default=0), FARTHEST_NS)

    def shift(self, rank: int) -> int:
        return self._ranks[rank].shift

    def steps(self, rank: int) -> Steps:
        return self._steps[rank]

    def step_bounds(self, number: int) -> tuple[int, int] | None:
        """Return when the first rank begins a step and the last one ends it."""
        starts, ends = [], []
        for steps in self._steps.values():
            starts += steps.start_ns[steps.number == number].tolist()
            ends += steps.end_ns[steps.number == number].tolist()
        return (min(starts), max(ends)) if starts else None

    def step_range(self) -> tuple[int, int] | None:
        """Return the first and the last step of any rank."""
        numbers = np.concatenate([np.empty(0, np.int64), *self._step_numbers()])
        return (int(numbers.min()), int(numbers.max())) if len(numbers) else None

    def slowest_first(self) -> list[int]:
        """Return the ranks, the one with the longest usual step first."""
        return sorted(self._steps, key=lambda rank: -_median_ns(self._steps[rank]))

    def steady_stretch(self) -> tuple[int, int] | None:
        """Return when three usual steps of the slowest rank begin and end, late in the run."""
        rank = next(iter(self.slowest_first()), None)
        if rank is None or len(self._steps[rank].number) < FEWEST_STEADY:
            return None
        slowest = self._steps[rank]
        took_ns = slowest.end_ns[SHOWN_STEPS - 1 :] - slowest.start_ns[: 1 - SHOWN_STEPS]
        rows, _ = self._ranks[rank].trace.select("steps", ("step", "instrumented"))
        timed = rows["step"].to_numpy()[rows["instrumented"].to_numpy(zero_copy_only=False)]
        shown = np.convolve(np.isin(slowest.number, timed), np.ones(SHOWN_STEPS), "valid")
        late = np.flatnonzero(shown == SHOWN_STEPS)
        late = late[len(late) // 2 :]
        if not len(late):
            return None
        place = int(late[np.argmin(np.abs(took_ns[late] - np.median(took_ns)))])
        return int(slowest.start_ns[place]), int(slowest.end_ns[place + SHOWN_STEPS - 1])

    def _step_numbers(self) -> list[Ints]:
        return [steps.number for steps in self._steps.values()]

    def ready(self, rank: int, group: Group, at_least_ns: int = 0) -> bool:
        """Return True if `lanes` would read nothing."""
        return self._store.ready(rank, group, at_least_ns)

    def lanes(self, rank: int, group: Group, at_least_ns: int = 0) -> tuple[Lane, ...]:
        """Return the rank's lanes of a group, without shorter pieces; read them if necessary.

        Lanes that were read before are returned without waiting for another thread.
        """
        return self._store.lanes(rank, group, at_least_ns)

    def forget(self) -> None:
        """Release all lanes; they are read again when they are shown again."""
        self._store.forget()

    def bytes_of(self, rank: int, group: Group | None) -> int:
        """Return the size of the file with a group of lanes, or with the counters."""
        table = "samples"
        if group is not None:
            table = TABLE_OF[group]
        path = self._ranks[rank].trace.path(table)
        return path.stat().st_size if path.exists() else 0

    def lane(self, rank: int, group: Group, label: str, at_least_ns: int = 0) -> Lane | None:
        for lane in self.lanes(rank, group, at_least_ns):
            if lane.label == label:
                return lane
        return None

    def counters_ready(self, rank: int) -> bool:
        return rank in self._counters

    def counters(self, rank: int) -> tuple[Counter, ...]:
        if rank not in self._counters:
            place = self._ranks[rank].trace
            rows, self._problems[rank, "samples"] = place.select("samples", SAMPLE_COLUMNS)
            self._counters[rank] = tuple(counters_of(rows))
        return self._counters[rank]

    def event(self, rank: int, lane: Lane, piece: int) -> Event | None:
        """Return one piece's event with all its columns; `None` if the table cannot be read."""
        place, level = self._ranks[rank], lane.level
        row = place.trace.row(TABLE_OF[lane.group], int(level.pieces.rows[piece]))
        if row is None:
            return None
        start, end = row["start_ns"], row["end_ns"]
        fields = {name: value for name, value in row.items() if value is not None}
        for shown in ("rank", "start_ns", "end_ns", "name"):
            fields.pop(shown, None)
        return Event(
            rank=rank,
            group=lane.group,
            label=lane.label,
            name=self.name(rank, lane, piece),
            kind=level.kinds[level.pieces.kinds[piece]],
            start_ns=start + place.shift,
            began_ns=start,
            duration_ns=end - start,
            fields=fields,
        )

    def name(self, rank: int, lane: Lane, piece: int) -> str:
        return str(self._ranks[rank].trace.names[int(lane.level.pieces.names[piece])].as_py())

    def find(
        self,
        rank: int,
        lane: Lane,
        wanted: Callable[[str], bool],
        from_ns: int,
        *,
        back: bool = False,
    ) -> int | None:
        """Return the next piece after a moment with a wanted name, or the last one before it.

        `wanted` is called once for each distinct name.
        """
        names = self._ranks[rank].trace.names.to_pylist()
        chosen = np.fromiter(map(wanted, names), dtype=bool, count=len(names))
        pieces = lane.level.pieces
        starts = pieces.starts + self._ranks[rank].shift
        return nearest(starts, chosen[pieces.names], from_ns, back=back)

    def gap(
        self, rank: int, lane: Lane, from_ns: int, longer_ns: int, *, back: bool = False
    ) -> Gap | None:
        """Return the next gap of a lane on the axis, or the one before."""
        shift = self._ranks[rank].shift
        found = lane.level.gap(from_ns - shift, longer_ns, back=back)
        return Gap(found.start_ns + shift, found.end_ns + shift) if found else None

    def late(self, from_ns: int, longer_ns: int, *, back: bool = False) -> LateArrival | None:
        """Return the next collective that a rank waited longer for, or the last one before."""
        return self._arrivals.find(from_ns, longer_ns, back=back)

    def prepare(self) -> None:
        """Match the collectives and find the changes now, so that later calls return at once."""
        _ = self._arrivals
        self.look_for_changes()

    def look_for_changes(self) -> None:
        if self.trace.steps.num_rows:
            used = including_batches(frame_of(self.trace).selection)
            self.changes = find_changes(self.trace, used)

    @functools.cached_property
    def _arrivals(self) -> Arrivals:
        steps = np.unique(np.concatenate([np.empty(0, np.int64), *self._step_numbers()]))
        shifts = {rank: place.shift for rank, place in self._ranks.items()}
        return find_arrivals(self.trace.table("collectives"), steps, shifts)


# Late arrivals: the last rank to come to each collective, and how long the others waited.
class LateArrival(NamedTuple):
    """A collective that ranks waited for: the last to come, when, and the longest wait."""

    time_ns: int
    rank: int
    waited_ns: int
    step: int


class Arrivals(NamedTuple):
    """The late arrivals of all collectives, in order of time."""

    time_ns: Ints
    rank: Ints
    waited_ns: Ints
    step: Ints

    def find(self, from_ns: int, longer_ns: int, *, back: bool) -> LateArrival | None:
        """Return the next one after a moment with a longer wait, or the last one before it."""
        place = nearest(self.time_ns, self.waited_ns > longer_ns, from_ns, back=back)
        if place is None:
            return None
        return LateArrival(*(int(column[place]) for column in self))


def find_arrivals(collectives: pa.Table, steps: Ints, shifts: Mapping[int, int]) -> Arrivals:
    """Return when the last rank came to each collective that some rank waited in.

    Only collectives that all their ranks recorded count. Durations tell who came last, so the
    ranks' clocks need not agree; `shifts` bring the times to the timeline's axis.
    """
    found = match_collectives(collectives, steps)
    longest = np.zeros(found.count, dtype=np.int64)
    np.maximum.at(longest, found.group, found.end - found.start - found.transfer)
    is_last = found.matched & (found.rank == found.late_rank)
    came = np.flatnonzero(is_last & (longest[found.group] > 0))
    shift = np.zeros(max(shifts, default=0) + 1, dtype=np.int64)
    for rank, ns in shifts.items():
        shift[rank] = ns
    time = found.start[came] + shift[found.rank[came]]
    order = np.argsort(time, kind="stable")
    came = came[order]
    waited_ns = longest[found.group[came]]
    return Arrivals(time[order], found.rank[came], waited_ns, found.step[came])
