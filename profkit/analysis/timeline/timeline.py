"""A run over time, ranks beside each other, read as far as it is looked at.

Opening reads the steps alone. The lanes of a rank's table are made when a view first shows them, or
ahead of that by another thread; a view that may not wait says what is still to be read. Times of
the axis are ns since the run's first step, over all ranks.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profkit.analysis.estimate import Ints
from profkit.analysis.exchange import match_collectives
from profkit.analysis.timeline.cache import LaneCache
from profkit.analysis.timeline.counters import COLUMNS as SAMPLE_COLUMNS
from profkit.analysis.timeline.counters import Counter, counters_of
from profkit.analysis.timeline.lanes import COLUMNS, TABLE_OF, Group, Lane, lanes_of, streams_of
from profkit.analysis.timeline.levels import Gap
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from profkit.vocab import END_FILE

MOST_PIECES = 34_000_000
"""Pieces that are kept in memory, beside those of mapped files; the tables that were not shown for longest are let go first."""

FARTHEST_NS = 2**60
"""Thirty-six years: what lies farther away is no time of this run, and is not looked at."""

KEPT = frozenset({Group.DEVICES, Group.STREAMS})
"""What comes from a table that may be large enough to be worth keeping on disk."""


class Steps(NamedTuple):
    """A rank's steps in order, on the axis."""

    number: Ints
    start_ns: Ints
    end_ns: Ints


class LateArrival(NamedTuple):
    """A collective for which ranks waited: who came last, when, and how long the first to come had waited."""

    time_ns: int
    rank: int
    waited_ns: int
    step: int


class _Arrivals(NamedTuple):
    """The same of all collectives, in order of time."""

    time_ns: Ints
    rank: Ints
    waited_ns: Ints
    step: Ints


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
    """The same on the rank's own clock, which `fields` are told in."""
    duration_ns: int
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class _Place:
    """A rank, and what brings its clock to the axis."""

    trace: RankTrace
    shift: int


class _Key(NamedTuple):
    """Lanes of a rank, without what is shorter than `at_least_ns`."""

    rank: int
    group: Group
    at_least_ns: int


@dataclass(frozen=True)
class Timeline:
    """A run that is open for looking at. Safe to use from several threads."""

    trace: Trace
    clocks: str
    """How the ranks' clocks were brought together."""
    _ranks: Mapping[int, _Place]
    _steps: Mapping[int, Steps]
    _cache: LaneCache
    _lanes: dict[_Key, tuple[Lane, ...]] = field(default_factory=dict)
    _counters: dict[int, tuple[Counter, ...]] = field(default_factory=dict)
    _problems: dict[tuple[int, str], str] = field(default_factory=dict)
    _used: dict[_Key, int] = field(default_factory=dict)
    _clock: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, trace: Trace, cache: Path | None = None) -> Timeline:
        """Read the steps of all ranks. Lanes of large tables are kept in the folder `cache`."""
        shifts, clocks = _align(trace)
        own: dict[int, Steps] = {}
        problems: dict[tuple[int, str], str] = {}
        for rank in trace.ranks:
            rows, problems[rank.rank, "steps"] = rank.select(
                "steps", ("step", "start_ns", "end_ns")
            )
            number, start, end = (rows[name].to_numpy() for name in rows.column_names)
            order = np.argsort(start, kind="stable")
            own[rank.rank] = Steps(
                number[order], start[order] + shifts[rank.rank], end[order] + shifts[rank.rank]
            )
        origin = min(
            (int(steps.start_ns[0]) for steps in own.values() if len(steps.number)), default=None
        )
        if origin is None:
            origin = _first_event(trace, shifts)
        places = {rank.rank: _Place(rank, shifts[rank.rank] - origin) for rank in trace.ranks}
        steps = {
            rank: Steps(found.number, found.start_ns - origin, found.end_ns - origin)
            for rank, found in own.items()
        }
        return cls(trace, clocks, places, steps, LaneCache(cache), _problems=problems)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self._ranks)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is damaged in the tables that were read so far."""
        return tuple(
            f"rank {rank}, {table}: {problem}"
            for (rank, table), problem in self._problems.items()
            if problem
        )

    @property
    def bounds(self) -> tuple[int, int]:
        """From the first to the last moment of what was read so far."""
        starts = [int(steps.start_ns[0]) for steps in self._steps.values() if len(steps.number)]
        ends = [int(steps.end_ns.max()) for steps in self._steps.values() if len(steps.number)]
        for key, lanes in list(self._lanes.items()):
            shift = self._ranks[key.rank].shift
            starts.extend(
                int(lane.level.pieces.starts[0]) + shift for lane in lanes if len(lane.level.pieces)
            )
            ends.extend(
                int(lane.level.pieces.ends[-1]) + shift for lane in lanes if len(lane.level.pieces)
            )
        return max(min(starts, default=0), -FARTHEST_NS), min(max(ends, default=0), FARTHEST_NS)

    def shift(self, rank: int) -> int:
        return self._ranks[rank].shift

    def steps(self, rank: int) -> Steps:
        return self._steps[rank]

    def step_bounds(self, number: int) -> tuple[int, int] | None:
        """From the first rank's beginning of a step to the last one's end of it."""
        found = [
            (steps.start_ns[at], steps.end_ns[at])
            for steps in self._steps.values()
            for at in np.flatnonzero(steps.number == number)
        ]
        return (
            (int(min(start for start, _ in found)), int(max(end for _, end in found)))
            if found
            else None
        )

    def step_range(self) -> tuple[int, int] | None:
        """The first and the last step there is on any rank."""
        numbers = [
            number
            for steps in self._steps.values()
            if len(steps.number)
            for number in (int(steps.number.min()), int(steps.number.max()))
        ]
        return (min(numbers), max(numbers)) if numbers else None

    def ready(self, rank: int, group: Group, at_least_ns: int = 0) -> bool:
        """Whether the lanes can be had without reading."""
        return _Key(rank, group, at_least_ns) in self._lanes

    def lanes(self, rank: int, group: Group, at_least_ns: int = 0) -> tuple[Lane, ...]:
        """The rank's lanes of a group without what is shorter, read now if they were not before; what was is had without waiting for another thread.

        Of durations only the last one that was asked for is kept, beside no duration.
        """
        key = _Key(rank, group, at_least_ns)
        self._used[key] = next(self._clock)
        if (lanes := self._lanes.get(key)) is not None:
            return lanes
        with self._lock:
            lanes = self._lanes.get(key)
            if lanes is None:
                lanes = self._lanes[key] = self._read(key)
                self._let_go(key)
        return lanes

    def bytes_of(self, rank: int, group: Group | None) -> int:
        """What there is to read for a group of lanes, or for the counters."""
        path = self._ranks[rank].trace.path("samples" if group is None else TABLE_OF[group])
        return path.stat().st_size if path.exists() else 0

    def forget(self) -> None:
        """Let go of all lanes; they are read again when they are shown again."""
        with self._lock:
            self._lanes.clear()

    def lane(self, rank: int, group: Group, label: str, at_least_ns: int = 0) -> Lane | None:
        return next(
            (lane for lane in self.lanes(rank, group, at_least_ns) if lane.label == label), None
        )

    def counters_ready(self, rank: int) -> bool:
        return rank in self._counters

    def counters(self, rank: int) -> tuple[Counter, ...]:
        if rank not in self._counters:
            rows, self._problems[rank, "samples"] = self._ranks[rank].trace.select(
                "samples", SAMPLE_COLUMNS
            )
            self._counters[rank] = tuple(counters_of(rows))
        return self._counters[rank]

    def event(self, rank: int, lane: Lane, piece: int) -> Event | None:
        """One piece's event with all that its table says of it; `None` where the table cannot be read any more."""
        place, level = self._ranks[rank], lane.level
        row = place.trace.row(TABLE_OF[lane.group], int(level.pieces.rows[piece]))
        if row is None:
            return None
        start, end = row["start_ns"], row["end_ns"]
        shown = {
            name: value
            for name, value in row.items()
            if value is not None and name not in {"rank", "start_ns", "end_ns", "name"}
        }
        kind = level.kinds[level.pieces.kinds[piece]]
        return Event(
            rank,
            lane.group,
            lane.label,
            self.name(rank, lane, piece),
            kind,
            start + place.shift,
            start,
            end - start,
            shown,
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
        """The next piece after a moment whose name is wanted, or the last before it. Each distinct name is looked at once."""
        names = self._ranks[rank].trace.names.to_pylist()
        pieces = lane.level.pieces
        chosen = np.fromiter(map(wanted, names), dtype=bool, count=len(names))
        starts = pieces.starts + self._ranks[rank].shift
        found = np.flatnonzero(
            chosen[pieces.names] & ((starts < from_ns) if back else (starts > from_ns))
        )
        return int(found[-1 if back else 0]) if len(found) else None

    def gap(
        self, rank: int, lane: Lane, from_ns: int, longer_ns: int, *, back: bool = False
    ) -> Gap | None:
        """The next gap of a lane on the axis, or the one before."""
        shift = self._ranks[rank].shift
        found = lane.level.gap(from_ns - shift, longer_ns, back=back)
        return Gap(found.start_ns + shift, found.end_ns + shift) if found else None

    def late(self, from_ns: int, longer_ns: int, *, back: bool = False) -> LateArrival | None:
        """The next collective after a moment for which some rank waited longer than this, or the last one before."""
        arrivals = self._arrivals
        found = np.flatnonzero(
            (arrivals.waited_ns > longer_ns)
            & ((arrivals.time_ns < from_ns) if back else (arrivals.time_ns > from_ns))
        )
        return (
            LateArrival(*(int(column[found[-1 if back else 0]]) for column in arrivals))
            if len(found)
            else None
        )

    def prepare(self) -> None:
        """Match the collectives now, so that the first question about late ranks is answered at once."""
        _ = self._arrivals

    @functools.cached_property
    def _arrivals(self) -> _Arrivals:
        """Every collective that all its ranks recorded and some rank waited in, by when the last rank came.

        Durations tell who came last, so the ranks' clocks need not agree.
        """
        numbers = [steps.number for steps in self._steps.values()]
        parts = match_collectives(
            self.trace.table("collectives"),
            np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64),
        )
        most = np.zeros(parts.count, dtype=np.int64)
        np.maximum.at(most, parts.group, parts.end - parts.start - parts.transfer)
        came = np.flatnonzero(
            parts.matched & (parts.rank == parts.late_rank) & (most[parts.group] > 0)
        )
        shift = np.zeros(max(self._ranks, default=0) + 1, dtype=np.int64)
        for rank, place in self._ranks.items():
            shift[rank] = place.shift
        time = parts.start[came] + shift[parts.rank[came]]
        order = np.argsort(time, kind="stable")
        came = came[order]
        return _Arrivals(time[order], parts.rank[came], most[parts.group[came]], parts.step[came])

    def _read(self, key: _Key) -> tuple[Lane, ...]:
        if (
            key.group is Group.STREAMS
            and (streams := streams_of(self._lanes.get(key._replace(group=Group.DEVICES), ())))
            is not None
        ):
            return streams
        return self._without_short(key) if key.at_least_ns else self._whole(key.rank, key.group)

    def _whole(self, rank: int, group: Group) -> tuple[Lane, ...]:
        place, table = self._ranks[rank].trace, TABLE_OF[group]
        sources = [place.path(table), place.path("strings")]
        kept = group in KEPT and (place.folder / END_FILE).exists() and place.path(table).exists()
        lanes = self._cache.load(group, sources) if kept else None
        if lanes is None:
            rows, self._problems[rank, table] = place.select(table, COLUMNS[table])
            lanes = lanes_of(group, rows)
            if kept and self._cache.save(group, sources, lanes):
                lanes = (
                    self._cache.load(group, sources) or lanes
                )  # as a mapped file they take no memory
        return tuple(lanes)

    def _without_short(self, key: _Key) -> tuple[Lane, ...]:
        for old in [each for each in self._lanes if each.at_least_ns not in {0, key.at_least_ns}]:
            del self._lanes[old]
        all_of_it = key._replace(at_least_ns=0)
        if all_of_it not in self._lanes:
            self._lanes[all_of_it] = self._read(all_of_it)
        return tuple(
            self._cache.mapped([lane.at_least(key.at_least_ns) for lane in self._lanes[all_of_it]])
        )

    def _let_go(self, kept: _Key) -> None:
        sizes = {
            key: sum(len(lane.level.pieces) for lane in lanes if lane.level.kept is None)
            for key, lanes in list(self._lanes.items())
        }
        for oldest in sorted(sizes.keys() - {kept}, key=lambda key: self._used.get(key, 0)):
            if sum(sizes.values()) <= MOST_PIECES:
                return
            del self._lanes[oldest], sizes[oldest]


SAME_CLOCK, TIME_OF_DAY, OWN_CLOCKS = (
    "one host, one clock",
    "ranks' clocks aligned by the time of day",
    "ranks' clocks are not aligned",
)


def _align(trace: Trace) -> tuple[dict[int, int], str]:
    """What brings each rank's clock to a common one, and how that is known. Processes of one host share its clock."""
    manifests = {rank.rank: rank.manifest for rank in trace.ranks}
    anchors = {rank: manifest.anchor for rank, manifest in manifests.items()}
    if len({manifest.host for manifest in manifests.values()}) <= 1:
        return dict.fromkeys(manifests, 0), SAME_CLOCK
    if any(anchor.realtime_ns <= 0 for anchor in anchors.values()):
        return dict.fromkeys(manifests, 0), OWN_CLOCKS
    return {
        rank: anchor.realtime_ns - anchor.monotonic_ns for rank, anchor in anchors.items()
    }, TIME_OF_DAY


def _first_event(trace: Trace, shifts: Mapping[int, int]) -> int:
    """Where the axis of a run without steps begins."""
    found = [
        int(rows["start_ns"].to_numpy().min()) + shifts[rank.rank]
        for rank in trace.ranks
        for table in COLUMNS
        for rows in [rank.select(table, ("start_ns",))[0]]
        if rows.num_rows
    ]
    return min(found, default=0)
