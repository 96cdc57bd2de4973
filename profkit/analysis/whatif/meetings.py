"""The points of a step at which ranks meet: launches of collectives, and waits for them.

A rank's events are equal in all steps that are modelled. If collectives have no ends of their own,
as on a device, each exposed wait counts as one collective in which all ranks take part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.errors import ProfkitError
from profkit.frame.columns import codes_of, split_ranks, step_places
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exchange import HOST_BACKENDS, exposed_windows, is_end_shared
from profkit.frame.intervals import union
from profkit.frame.pipelines import MESSAGES

JOIN = -1
"""The code of an event at which a rank waits; codes above it are communicators.

Codes below it are those of messages between two ranks, which wait for no earlier message.
"""

MOST_EVENTS = 1_000
"""With more events per step, the exposed waits are replayed instead of single collectives."""

MIN_ALIKE_SHARE = 0.5
"""At least this share of the steps must have the same events."""


class ReplayError(ProfkitError):
    """The recorded steps do not fit the model of a step, and the reason."""


@dataclass(frozen=True, eq=False)
class Events:
    """One rank's events by (event, step), in the order of time. Times are those of its clock."""

    codes: tuple[int, ...]
    times: Ints
    ends: Ints
    """When a launched collective ended; of a wait, the time of the event itself."""
    sequences: Ints
    sizes: Ints
    kept: Bools
    """The steps that have exactly these events."""


@dataclass(frozen=True, eq=False)
class Meetings:
    """The events of all ranks, and the collectives that they are about, counted from 0."""

    events: Mapping[int, Events]
    numbers: Mapping[int, tuple[int, ...]]
    """The collective of each event of a rank, or `JOIN`."""
    members: tuple[frozenset[int], ...]
    """The ranks that take part in each collective."""
    previous: tuple[int, ...]
    """The collective before it on the same communicator, or -1."""
    detailed: bool
    """True if these are single collectives, false if they are exposed waits."""
    one_clock: bool = False
    """True if the times of all ranks are those of one host's clock."""

    @property
    def kept(self) -> Bools:
        """The steps in which all ranks have the usual events, of the same collectives."""
        kept: Bools = np.ones(1, dtype=bool)
        known: dict[int, Ints] = {}
        for rank, events in self.events.items():
            kept = kept & events.kept
            for place, number in enumerate(self.numbers[rank]):
                if number != JOIN:
                    kept &= (
                        known.setdefault(number, events.sequences[place])
                        == (events.sequences[place])
                    )
        return np.asarray(kept)

    def transfers(self) -> Floats:
        """Return the time of each collective without waiting, by (collective, step).

        In each step it is that of the rank that took the least time in all collectives of the same
        ranks. The shortest time of each single collective would add up to too little.
        """
        steps = len(next(iter(self.events.values())).kept)
        own = {rank: self._own_transfers(rank, steps) for rank in self.events}
        found = np.zeros((len(self.members), steps))
        for members in set(self.members):
            rows = [place for place, each in enumerate(self.members) if each == members]
            times = np.stack([own[rank][rows] for rank in sorted(members)])
            quickest = times.sum(axis=1).argmin(axis=0)
            found[rows] = times[quickest, :, np.arange(steps)].T
        if self.one_clock:
            self._time_messages(found)
        return found

    def _time_messages(self, found: Floats) -> None:
        """Replace the time of messages: both sides may begin one long before the other does."""
        starts, ends = np.zeros_like(found), np.full_like(found, np.inf)
        messages = set[int]()
        for rank, events in self.events.items():
            for place, number in enumerate(self.numbers[rank]):
                if events.codes[place] < JOIN:
                    messages.add(number)
                    starts[number] = np.maximum(starts[number], events.times[place])
                    ends[number] = np.minimum(ends[number], events.ends[place])
        for number in messages:  # the side that ends first has seen it arrive
            found[number] = np.maximum(ends[number] - starts[number], 0.0)

    def _own_transfers(self, rank: int, steps: int) -> Floats:
        """Return what each collective took on one rank since the one before it was done."""
        events, found = self.events[rank], np.zeros((len(self.members), steps))
        ends: dict[int, Ints] = {}
        for place, number in enumerate(self.numbers[rank]):
            if number != JOIN:
                free = ends.get(self.previous[number], events.times[place])
                took = events.ends[place] - np.maximum(events.times[place], free)
                found[number] = np.maximum(took, 0)
                ends[number] = events.ends[place]
        return found

    def sizes(self) -> Floats:
        """Return the mean size of each collective; zero if it is not known."""
        found = np.zeros(len(self.members))
        for rank, events in self.events.items():
            for place, number in enumerate(self.numbers[rank]):
                if number != JOIN:
                    found[number] = events.sizes[place][events.kept].mean()
        return found

    def waits(self, rank: int, kept: Bools) -> tuple[int | tuple[int, ...], ...]:
        """Return each event of a rank: the collective that it launches, or those it waits for."""
        events, found = self.events[rank], list[int | tuple[int, ...]]()
        launched: dict[int, Ints] = {}
        for place, number in enumerate(self.numbers[rank]):
            if number != JOIN:
                launched[number] = events.ends[place]
                found.append(number)
                continue
            done = []
            for other, ends in launched.items():
                if (ends <= events.times[place])[kept].mean() >= MIN_ALIKE_SHARE:
                    done.append(other)
            found.append(tuple(done))
        return tuple(found)


def find_meetings(
    spans: pa.Table, collectives: pa.Table, ranks: Sequence[int], used: Ints, *, hosts: int = 1
) -> Meetings:
    """Return where ranks meet; raise `ReplayError` if their steps have too little in common.

    Clocks of several `hosts` cannot be compared.
    """
    windows = exposed_windows(spans, used)
    if len(ranks) < 2:
        return _number(dict.fromkeys(ranks, _align(_nothing(), used[:0], len(used))), None)
    if has_own_ends(collectives, len(ranks) * len(used)):
        try:
            events = _events_of_ranks(windows, collectives, ranks, used)
            found = _number(events, collectives)
            return dataclasses.replace(found, one_clock=hosts == 1)
        except ReplayError:
            pass  # the number of collectives varies; that of the waits may not
    ops = set(pc.unique(collectives["op"].cast(pa.string())).to_pylist())
    if ops & set(MESSAGES):
        raise ReplayError("messages between the stages of a pipeline have no ends of their own")
    events = _events_of_ranks(windows, None, ranks, used)
    if collectives.num_rows and not all(each.codes for each in events.values()):
        raise ReplayError("ranks have collectives, and not all of their waits were recorded")
    return _number(events, None)


def _nothing() -> Ints:
    return np.empty((5, 0), dtype=np.int64)


def has_own_ends(collectives: pa.Table, steps: int) -> bool:
    """Return true if the ends of all collectives are those that the host waits for."""
    if not 0 < collectives.num_rows <= MOST_EVENTS * steps:
        return False
    by_host = pc.is_in(collectives["backend"].cast(pa.string()), pa.array(HOST_BACKENDS))
    return bool(pc.all(by_host).as_py()) and not is_end_shared(collectives).any()


def _events_of_ranks(
    windows: pa.Table, collectives: pa.Table | None, ranks: Sequence[int], used: Ints
) -> dict[int, Events]:
    found, waited = {}, split_ranks(windows)
    launches = {} if collectives is None else find_launches(collectives, used)
    for rank in ranks:
        lows, highs, place = merge_waits(waited.get(rank, windows.slice(0, 0)), used)
        nothing = np.zeros(len(place), dtype=np.int64)
        waits = np.stack([nothing + JOIN, highs, highs, nothing, nothing])
        if collectives is None:
            launched, at = np.stack([nothing, lows, highs, nothing, nothing]), place
        else:
            launched, at = launches.get(rank, (_nothing(), nothing[:0]))
        if len(at) and not len(place):
            raise ReplayError("a rank has collectives, and its waits for them were not recorded")
        both = np.concatenate([launched, waits], axis=1)
        found[rank] = _align(both, np.concatenate([at, place]), len(used))
    return found


def find_launches(collectives: pa.Table, used: Ints) -> dict[int, tuple[Ints, Ints]]:
    """Return the launches of each rank, with their steps."""
    launch = pc.coalesce(collectives["ready_ns"], collectives["start_ns"])
    code = codes_of(collectives["communicator"])
    ops = collectives["op"].cast(pa.string())
    is_message = pc.is_in(ops, pa.array(MESSAGES)).to_numpy(zero_copy_only=False)
    columns = [np.where(is_message, JOIN - 1 - code, code), launch.to_numpy()]
    for name in ("end_ns", "sequence", "bytes"):
        columns.append(collectives[name].to_numpy())
    table, place = np.stack(columns), step_places(collectives, used)
    rank = collectives["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    ranks, first = np.unique(rank[order], return_index=True)
    found = {}
    for each, mine in zip(ranks.tolist(), np.split(order, first[1:]), strict=True):
        found[each] = table[:, mine], place[mine]
    return found


def merge_waits(windows: pa.Table, used: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the waits of a rank, with their steps; those that overlap are one."""
    start, end = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    place = step_places(windows, used)
    if not len(start):
        return start, end, place
    lows, highs = union(start, end)
    order = np.argsort(start, kind="stable")
    opener = order[np.searchsorted(start[order], lows, side="left")]
    return np.asarray(lows), np.asarray(highs), place[opener]


def _align(columns: Ints, place: Ints, steps: int) -> Events:
    """Arrange events by (event, step); raise `ReplayError` if most steps differ."""
    columns, place = columns[:, place >= 0], place[place >= 0]
    # A wait ends after the launches that are at the same time as its end.
    order = np.lexsort((columns[0] == JOIN, columns[1], place))
    columns, place = columns[:, order], place[order]
    counts = np.bincount(place, minlength=steps)
    usual = int(np.argmax(np.bincount(counts)))
    kept = counts == usual
    full = np.zeros((4, usual, steps), dtype=np.int64)
    codes: tuple[int, ...] = ()
    if usual:
        table = columns[:, kept[place]].reshape(5, -1, usual)
        codes = tuple(table[0, 0].tolist())
        chosen = (table[0] == table[0, 0]).all(axis=1)
        if not chosen.all():
            kinds, which, alike = np.unique(
                table[0], axis=0, return_inverse=True, return_counts=True
            )
            codes = tuple(kinds[np.argmax(alike)].tolist())
            chosen = which.ravel() == np.argmax(alike)
        kept[np.flatnonzero(kept)[~chosen]] = False
        full[:, :, kept] = table[1:, chosen].transpose(0, 2, 1)
    if kept.mean() < MIN_ALIKE_SHARE:
        raise ReplayError("the steps of a rank have too little in common to be replayed")
    return Events(codes, full[0], full[1], full[2], full[3], kept)


def _number(events: Mapping[int, Events], collectives: pa.Table | None) -> Meetings:
    """Number the collectives over the ranks; raise `ReplayError` if some ranks lack theirs."""
    known: dict[tuple[int, int], int] = {}
    numbers, previous, members = {}, list[int](), list[set[int]]()
    for rank, each in events.items():
        counts: dict[int, int] = {}
        own = []
        for code in each.codes:
            if code == JOIN:
                own.append(JOIN)
                continue
            place = counts[code] = counts.get(code, -1) + 1
            if (code, place) not in known:
                known[code, place] = len(members)
                chained = (code, place - 1) in known and code > JOIN
                previous.append(known[code, place - 1] if chained else -1)
                members.append(set())
            own.append(known[code, place])
            members[own[-1]].add(rank)
        numbers[rank] = tuple(own)
    size, codes = len(events), np.empty(0, dtype=np.int64)
    if collectives is not None:
        codes, groups = codes_of(collectives["communicator"]), collectives["group_size"].to_numpy()
    for (code, _), number in known.items():
        if len(codes):
            own_code = code if code > JOIN else JOIN - 1 - code
            size = int(groups[np.argmax(codes == own_code)])
        if len(members[number]) != size:
            raise ReplayError("not all ranks recorded the collectives in which they take part")
    frozen = tuple(map(frozenset, members))
    return Meetings(events, numbers, frozen, tuple(previous), collectives is not None)
