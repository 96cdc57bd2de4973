"""Match the collectives of all ranks: who waits for whom, and where they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from profkit.hangs.activity import Activity, Doing
from profkit.hangs.status import ENDED, FAILED, MESSAGES, RUNNING, Call, Status

SAME_SIZE = frozenset({"all_reduce", "reduce", "broadcast", "reduce_scatter"})
"""Operations for which every rank sends a message of the same size."""

TIMED_OUT = re.compile(r"time(d|s)?[ -]?out", re.IGNORECASE)
"""The error of a collective that a rank has left because the others did not come in time."""

STACK_GROUP = ""
"""The group of a call that only the stack shows."""


@dataclass(frozen=True)
class Waits:
    """The calls that ranks are in, and the ranks that each of them waits for."""

    open: Mapping[int, Call] = field(default_factory=dict)
    """The first collective that each rank has entered and not left."""
    missing: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """For each rank in a collective, the ranks that have not entered it."""
    differing: Mapping[int, Call] = field(default_factory=dict)
    """The calls of the ranks at the first number at which they differ; empty if none do."""
    last: Mapping[int, Call] = field(default_factory=dict)
    """The last call of each rank."""

    @property
    def waited_for(self) -> frozenset[int]:
        """The ranks that others wait for and that wait for nobody."""
        wanted: frozenset[int] = frozenset().union(*self.missing.values())
        waiting = []
        for rank, missing in self.missing.items():
            if missing:
                waiting.append(rank)
        return wanted.difference(waiting)


def find_waits(
    ranks: Mapping[int, Status],
    activities: Mapping[int, Activity],
    quiet: frozenset[int] = frozenset(),
) -> Waits:
    """Return who waits for whom, by the calls of each rank, or by stacks where there are none.

    `quiet` are ranks whose last words are old. They may have left the call since.
    """
    opened: dict[int, Call] = {}
    last: dict[int, Call] = {}
    for rank, status in ranks.items():
        calls = status.calls
        if calls:
            last[rank] = calls[-1]
        found = find_open(calls, rank)
        activity = activities[rank]
        is_message = activity.function in MESSAGES
        if found is None and activity.doing is Doing.COLLECTIVE and status.state == RUNNING:
            found = None if is_message else call_of_stack(activity.function, status)
        if found is None and timed_out(status, activity) and not is_message:
            found = last.get(rank)
        if found is not None and (status.state == RUNNING or timed_out(status, activity)):
            opened[rank] = found
    for rank in Entered(ranks, opened).find_left(quiet):
        del opened[rank]
    entered = Entered(ranks, opened)
    missing = {rank: entered.find_absent(rank, call) for rank, call in opened.items()}
    return Waits(opened, missing, find_difference(ranks, opened), last)


def find_open(calls: Iterable[Call], rank: int) -> Call | None:
    """Return the first call that is not over, if it is known who has to be there, too."""
    found = next((call for call in calls if not call.done), None)
    if found is not None and found.is_message and found.peer in {None, rank}:
        return None
    return found


def died_waiting(dead: Iterable[int], ranks: Mapping[int, Status], waits: Waits) -> bool:
    """Return true if these ranks died in a collective in which they had been for long.

    Some backends abort a rank whose collective takes too long.
    """
    for rank in dead:
        status = ranks[rank]
        if rank not in waits.open or status.stood_ns < status.limit_ns / 2:
            return False
    return True


def timed_out(status: Status, activity: Activity) -> bool:
    """Return true if a rank ended because it had waited too long for others in a collective."""
    in_exchange = activity.doing in {Doing.COLLECTIVE, Doing.BACKWARD}
    return status.state == FAILED and in_exchange and bool(TIMED_OUT.search(status.error))


def find_failed(
    ranks: Mapping[int, Status], activities: Mapping[int, Activity], waits: Waits
) -> int | None:
    """Return the rank whose error ended the job.

    A rank that has waited too long for another one, which still runs, is not to blame.
    """
    failed = [rank for rank, status in ranks.items() if status.state == FAILED]
    if not failed:
        return None
    first = min(failed, key=lambda rank: ranks[rank].written_ns)
    if timed_out(ranks[first], activities[first]):
        late = waits.waited_for.intersection(ranks)
        if any(ranks[rank].state == RUNNING for rank in late):
            return None
    return first


def call_of_stack(function: str, status: Status) -> Call | None:
    """Return the call that a rank is in by its stack, after the last one that is numbered."""
    collectives = [call for call in status.calls if not call.is_message]
    if not collectives:
        return Call(STACK_GROUP, 0, function)
    before = max(reversed(collectives), key=lambda each: each.since_ns)
    # The exchanges of gradients are counted as well, but nobody notes when they began.
    last = max(each.sequence for each in collectives if each.group == before.group)
    return Call(before.group, last + 1, function, members=before.members)


def find_difference(ranks: Mapping[int, Status], opened: Mapping[int, Call]) -> dict[int, Call]:
    """Return the calls at the first number at which two ranks of a group differ.

    Only numbers with an open call, or one after it, count: what is over has matched.
    """
    numbered: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, status in ranks.items():
        for call in (*status.calls, *([opened[rank]] if rank in opened else [])):
            if call.op and not call.is_message:
                numbered.setdefault((call.group, call.sequence), {})[rank] = call
    for calls in split_groups(numbered):
        has_open = any(not call.done for call in calls.values())
        ops = {call.op for call in calls.values()}
        measured = [call for call in calls.values() if call.bytes]  # a stack shows no size
        sizes = {call.bytes for call in measured if call.op in SAME_SIZE}
        types = {call.dtype for call in measured}
        if has_open and (len(ops) > 1 or len(sizes) > 1 or len(types) > 1):
            return calls
    return {}


def find_minority(calls: Mapping[int, Call]) -> tuple[int, ...]:
    """Return the ranks whose call is not that of the most; all of them if no call is."""
    keys = {}
    for rank, call in calls.items():
        keys[rank] = (call.group, call.sequence, call.op, call.bytes, call.dtype, call.peer)
    return _fewest(keys)


def find_apart(calls: Mapping[int, Call]) -> tuple[int, ...]:
    """Return the ranks apart from the most, if ranks of several groups wait in a circle.

    A rank that is behind in the group of the most waits for others, as in a broadcast.
    """
    keys: dict[int, tuple[object, ...]] = {}
    for rank, call in calls.items():
        keys[rank] = (call.group, call.members, call.peer)
    apart = _fewest(keys)
    return apart if len(apart) < len(calls) else find_minority(calls)


def _fewest(keys: Mapping[int, object]) -> tuple[int, ...]:
    """Return all but the ranks of the most frequent key; all of them if several are."""
    sides: dict[object, list[int]] = {}
    for rank, key in sorted(keys.items()):
        sides.setdefault(key, []).append(rank)
    most = max(sides.values(), key=len)
    if list(map(len, sides.values())).count(len(most)) > 1:
        return tuple(sorted(keys))
    return tuple(sorted(set(keys).difference(most)))


def split_groups(
    numbered: Mapping[tuple[str, int], dict[int, Call]],
) -> Iterator[dict[int, Call]]:
    """Yield the calls of each group and number; several groups may have one name."""
    for key in sorted(numbered):
        by_members: dict[tuple[int, ...], dict[int, Call]] = {}
        for rank, call in numbered[key].items():
            by_members.setdefault(tuple(sorted(call.members)), {})[rank] = call
        known = len(by_members.keys() - {()})
        if known > 1:
            yield from by_members.values()
        else:  # a rank that does not know the members of its group is in the only one
            yield numbered[key]


def list_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words: `0-2, 5`."""
    groups: list[list[int]] = []
    for rank in sorted(ranks):
        if groups and rank == groups[-1][-1] + 1:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    ends = []
    for group in groups:
        ends.append(f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]))
    return ", ".join(ends)


def say_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 0-2` or `ranks 0-2, 5`."""
    listed = list_ranks(ranks)
    return f"{'rank' if listed.isdigit() else 'ranks'} {listed}"


# Which ranks have entered a collective or a message, and which may have left it since.
class Entered:
    """How far each rank has got in each group, by its calls and by the one that it is in."""

    def __init__(self, ranks: Mapping[int, Status], opened: Mapping[int, Call]) -> None:
        self._ranks = ranks
        self._opened = opened
        self._entered: dict[int, dict[str, int]] = {}
        """By rank and group, the number of the last collective that was entered."""
        self._left: dict[int, dict[str, int]] = {}
        self._absent: dict[tuple[str, int, tuple[int, ...]], frozenset[int]] = {}
        """Of thousands of ranks, most are in the same call."""
        for rank, status in ranks.items():
            entered, left = self._entered.setdefault(rank, {}), self._left.setdefault(rank, {})
            own = [opened[rank]] if rank in opened else []
            for call in (*status.calls, *own):
                if not call.is_message:  # messages are numbered apart
                    _raise_to(entered, call.group, call.sequence)
            for call in status.calls:
                if not call.is_message:
                    _raise_to(left, call.group, call.sequence - (not call.done))

    def find_absent(self, rank: int, call: Call) -> frozenset[int]:
        """Return the others that have not entered the call in which a rank waits."""
        if call.is_message:
            others = other_members(call, rank, self._ranks)
            return frozenset(other for other in others if not self.has_entered(other, rank, call))
        key = call.group, call.sequence, call.members
        if key not in self._absent:
            members = call.members or self._ranks
            self._absent[key] = frozenset(
                member for member in members if not self.has_entered(member, rank, call)
            )
        return self._absent[key].difference((rank,))

    def has_entered(self, rank: int, waiter: int, call: Call) -> bool:
        """Return true if a rank has entered the call in which another one waits."""
        status = self._ranks.get(rank)
        if status is None:
            return False
        if not call.is_message:
            return self._entered[rank].get(call.group, -1) >= call.sequence
        for each in status.calls:  # of several that it has begun, any may be the other end
            if each.peer == waiter and each.op != call.op and not each.done:
                return True
        return False

    def has_left(self, rank: int, call: Call) -> bool:
        """Return true if a rank has left a collective, or has entered a later one of its group."""
        return not call.is_message and self._left[rank].get(call.group, -1) >= call.sequence

    def find_left(self, quiet: frozenset[int]) -> list[int]:
        """Return the ranks that may have left the call of their last words.

        Such a rank has been quiet since, or another one has left the call later, and ended. A rank
        that is heard, and has not entered the call or is still in it, shows that it is not over.
        """
        ended = [rank for rank, status in self._ranks.items() if status.state == ENDED]
        heard = []
        for rank, status in self._ranks.items():
            if status.state == RUNNING and rank not in quiet:
                heard.append(rank)
        left = []
        for rank, call in self._opened.items():
            if self._ranks[rank].state == RUNNING:
                is_unsure = rank in quiet or self._is_over(rank, call, ended)
                if is_unsure and not self._is_shown_open(rank, call, heard):
                    left.append(rank)
        return left

    def _is_over(self, rank: int, call: Call, ended: Iterable[int]) -> bool:
        """Return true if another rank has left the call since these words, and ended."""
        for other in ended:
            is_later = self._ranks[other].written_ns > self._ranks[rank].written_ns
            if is_later and takes_part(other, call) and self.has_left(other, call):
                return True
        return False

    def _is_shown_open(self, rank: int, call: Call, heard: Iterable[int]) -> bool:
        """Return true if a rank that is heard has not entered the call, or is in it."""
        for other in heard:
            if other == rank or not takes_part(other, call):
                continue
            if not self.has_entered(other, rank, call):
                return True
            if other in self._opened and not self.has_left(other, call):
                return True
        return False


def _raise_to(numbers: dict[str, int], group: str, number: int) -> None:
    numbers[group] = max(number, numbers.get(group, -1))


def takes_part(rank: int, call: Call) -> bool:
    """Return true if a rank is the other end of a message, or in the group of a collective."""
    if call.peer is not None:
        return rank == call.peer
    return not call.members or rank in call.members


def other_members(call: Call, rank: int, ranks: Iterable[int]) -> list[int]:
    """Return the ranks that take part in a call with this one."""
    if call.peer is not None:
        return [other for other in (call.peer,) if other != rank]
    return [other for other in call.members or tuple(ranks) if other != rank]
