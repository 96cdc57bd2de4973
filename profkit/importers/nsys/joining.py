"""Joins communicators over the processes of an export, which name them differently.

Without NCCL's own number of a communicator, a process only shows the stream that its collectives
run on, and that is another one in each process. But the processes of one export share a clock, and
a collective runs on all of its ranks at once. So two names mean one communicator if its collectives
are the same ones, in the same order, at the same times. If several would do, nobody is joined.

No export states how many ranks a communicator has, so it has those that show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from profkit.importers.reading.numbers import Ints
from profkit.text import plural

STREAM: Final = "stream "
"""Names that begin so are those of a process."""

MOST_CUT: Final = 2
"""Collectives at the ends of a capture that one process may have and another one lack."""

MOST_SIDES: Final = 256
"""Communicators over all ranks; beyond that, comparing each with each takes seconds."""

MIN_OVERLAPPING: Final = 0.9
"""The devices' clocks are brought together by some microseconds: short collectives may miss."""


MOST_APART_NS: Final = 50_000
"""A collective ends on all of its ranks at once, except for what the devices' clocks differ by."""


@dataclass(frozen=True, eq=False)
class Side:
    """A communicator as one rank shows it: its collectives in their order."""

    rank: int
    name: str
    rows: Ints
    messages: Sequence[tuple[str, int]]
    """The operation and the bytes of each."""
    start: Ints
    end: Ints
    offset: int = 0
    """The place of its first collective among those of the communicator's lowest rank."""

    @property
    def joined_name(self) -> str:
        return f"{self.name} of rank {self.rank}"


def join_communicators(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Give the collectives of one communicator one name and one numbering; yield what to flag.

    `ranks` are the columns of each rank's collectives, which are changed.
    """
    found = [side for rank, columns in enumerate(ranks) for side in _sides(rank, columns)]
    ranks_of = Counter(side.name for side in found)
    sides = []
    for side in found:
        own_name = side.name.startswith(STREAM) or ranks_of[side.name] == 1
        if own_name and len(ranks) > 1:
            sides.append(side)
    joined, left = _match(sides) if len(sides) <= MOST_SIDES else ([], sides)
    for members in joined:
        first = min(side.offset for side in members)
        for side in members:
            _rename(ranks[side.rank], side, members[0].joined_name)
            sequence = ranks[side.rank]["sequence"]
            sequence[side.rows] = np.arange(len(side.rows)) + side.offset - first
    for side in left:
        _rename(ranks[side.rank], side, side.joined_name)
    if joined:
        yield (
            f"{plural(len(joined), 'communicator')} joined over the ranks by the order, the sizes "
            "and the times of the collectives: the file names them differently in each process"
        )
    if left:
        yield (
            f"{plural(len(left), 'communicator')} could not be joined over the ranks: the file "
            "names them differently in each process, and their collectives match those of no other "
            "or of several, or they are too many; who waits there is not known"
        )
    yield from _count_ranks(ranks)


def _count_ranks(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Give each communicator as many ranks as show it, and yield what is not known of it.

    One that a single rank shows has other ranks outside of the file, and their number is 0.
    """
    counts: Counter[str] = Counter()
    for columns in ranks:
        counts.update(set(columns["communicator"]))
    for columns in ranks:
        for row, name in enumerate(columns["communicator"]):
            if counts[name] > 1:
                columns["group_size"][row] = counts[name]
    alone = list(counts.values()).count(1)
    shared = len(counts) - alone
    if shared:
        yield (
            f"{_which(shared, 'has as many ranks as show it', 'have as many ranks as show them')} "
            "in the file, which does not state the number; if there are more, bus bandwidth is too "
            "low, and the rank that the others wait for may be another one"
        )
    if alone:
        yield (
            f"{_which(alone, 'is', 'are')} shown by one rank alone: how many ranks take part is "
            "not known, and so are bus bandwidth and waiting"
        )


def _which(count: int, one: str, several: str) -> str:
    """Return how many communicators, with the verb that follows."""
    return f"{plural(count, 'communicator')} {one if count == 1 else several}"


def _sides(rank: int, columns: Mapping[str, Any]) -> Iterator[Side]:
    """Yield a rank's communicators in the order of their first use."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(columns["communicator"]):
        rows.setdefault(name, []).append(row)
    ops, sizes = columns["op"], columns["bytes"].tolist()
    for name, mine in rows.items():
        own = np.array(mine, dtype=np.int64)
        own = own[np.argsort(columns["start_ns"][own], kind="stable")]
        messages = [(ops[row], sizes[row]) for row in own.tolist()]
        start, end = columns["start_ns"][own], columns["end_ns"][own]
        yield Side(rank, name, own, messages, start, end)


def _match(sides: Sequence[Side]) -> tuple[list[list[Side]], list[Side]]:
    """Return the sides of each communicator, the lowest rank first; and those that stay alone."""
    near: dict[Side, set[Side]] = {side: {side} for side in sides}
    for place, one in enumerate(sides):
        for other in sides[place + 1 :]:
            if one.rank != other.rank and _offset(one, other) is not None:
                near[one].add(other)
                near[other].add(one)
    joined, left = [], []
    for side in sides:
        members = [other for other in sides if other in near[side]]
        ranks = {other.rank for other in members}
        is_whole = len(ranks) == len(members) > 1
        if not is_whole or any(near[other] != near[side] for other in members):
            left.append(side)
        elif members[0] is side:
            offsets = [_offset(side, other) or 0 for other in members]
            numbered = zip(members, offsets, strict=True)
            joined.append([replace(each, offset=offset) for each, offset in numbered])
    return joined, left


def _offset(one: Side, other: Side) -> int | None:
    """Return the place of the other's first collective among one's, if they are the same ones.

    It is negative if the other's capture began earlier. Collectives of one communicator run one
    after the other, so the first that overlap tell how the others belong together.
    """
    offset = int(np.searchsorted(one.end, other.start[0], side="right"))
    if not offset:
        offset = -int(np.searchsorted(other.end, one.start[0], side="right"))
    low, high = max(0, offset), min(len(one.rows), len(other.rows) + offset)
    if high <= low or max(len(one.rows), len(other.rows)) > high - low + MOST_CUT:
        return None
    mine, theirs = slice(low, high), slice(low - offset, high - offset)
    if one.messages[mine] != other.messages[theirs]:
        return None
    begun = np.maximum(one.start[mine], other.start[theirs])
    together = begun < np.minimum(one.end[mine], other.end[theirs])
    apart = np.median(np.abs(one.end[mine] - other.end[theirs]))
    if together.mean() >= MIN_OVERLAPPING and apart <= MOST_APART_NS:
        return offset
    return None


def _rename(columns: Mapping[str, Any], side: Side, name: str) -> None:
    for row in side.rows.tolist():
        columns["communicator"][row] = name
