"""Which ranks have entered a collective or a message, and which may have left it since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profkit.hangs.status import ENDED, RUNNING, Call, Status


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
