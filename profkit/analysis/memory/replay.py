"""The blocks of a recording, from its end backwards, and the moment of most of them."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from profkit.analysis.memory.snapshot import DeviceMemory, Event, SnapshotError
from profkit.analysis.memory.stacks import NO_STACK, Stack

SMALLEST = 512
SMALL = 1 << 20
"""Up to this size, blocks are in segments of their own and are always divided exactly."""
BEFORE = -1
"""The time of what happened before the recording."""
MOST_AT_ONCE = 200_000
"""Blocks, or segments. Jobs have some 10,000; each event of a file with more would take longer."""
Span = tuple[int, int]


@dataclass
class Life:
    """One block from its allocation until it is free, by the numbers of the events."""

    address: int
    requested: int
    size: int = 0
    born: int = BEFORE
    asked: int | None = None
    """When the job gave it up."""
    freed: int | None = None
    """When another allocation could have it."""
    stack: Stack = NO_STACK
    end_stack: Stack = NO_STACK
    doubt: int = 0
    """Bytes by which it may be larger, if it is older than the recording and not in its end."""

    def is_held(self, time: int) -> bool:
        """Return true if the job holds the block after that event."""
        return self.born <= time and (self.asked is None or self.asked > time)

    def is_pending(self, time: int) -> bool:
        """Return true if it was given up, and another stream may still use it."""
        asked = self.asked is not None and self.asked <= time
        return asked and (self.freed is None or self.freed > time)


@dataclass
class Replay:
    """All blocks, the moment that decides if the job fits, and what contradicts the rest."""

    lives: list[Life]
    moment: int
    """The last event at which an allocation failed, else that after which most was allocated."""
    spans: list[Span]
    """The reserved ranges at that moment."""
    misfits: int = 0
    """Events that contradict later ones: some are missing between them."""
    unlike: int = 0
    """Blocks whose size at the end is not the one that the events give."""


def replay(memory: DeviceMemory) -> Replay:
    """Return all blocks of the recording, with their sizes, and the moment."""
    lives, misfits = _backwards(memory)
    unlike = _Sizes(memory, lives).find()
    moment = _find_peak(find_totals(memory.events, lives))
    for number, event in enumerate(memory.events):
        if event.action == "oom":
            moment = number
    return Replay(lives, moment, _spans_at(memory, moment), misfits, unlike)


def _backwards(memory: DeviceMemory) -> tuple[list[Life], int]:
    """Return the blocks, and the number of events that fit no block."""
    end = len(memory.events)
    lives: list[Life] = []
    held: dict[int, Life] = {}
    for block in memory.blocks:
        life = Life(block.address, block.requested, block.size, stack=block.stack)
        if block.is_pending:
            life.asked = end
        lives.append(life)
        held[life.address] = life
    _check_number(len(held), "blocks")
    misfits = 0
    for number in range(end - 1, -1, -1):
        event = memory.events[number]
        known = held.get(event.address)
        if event.action == "alloc" and known is not None:
            del held[event.address]
            known.born, known.requested = number, event.size
            if event.stack is not NO_STACK:
                known.stack = event.stack
        elif event.action == "free_completed" and known is None:
            life = Life(event.address, event.size, asked=number, freed=number)
            life.end_stack = event.stack
            held[event.address] = life
            lives.append(life)
            _check_number(len(held), "blocks")
        elif event.action == "free_requested" and known is not None and known.asked is not None:
            known.asked, known.end_stack = number, event.stack
        else:
            misfits += event.action in ("alloc", "free_completed", "free_requested")
    return lives, misfits


class _Sizes:
    """Finds the size of each block as the allocator does: from the free room behind it."""

    def __init__(self, memory: DeviceMemory, lives: list[Life]) -> None:
        self._memory = memory
        self._lives = lives
        self._spans = _spans_at(memory, BEFORE)
        self._held = {life.address: life for life in lives if life.born == BEFORE}
        self._starts = sorted(self._held)

    def find(self) -> int:
        """Set sizes that the end does not show; return how many others do not follow from it."""
        unlike = 0
        for place, address in enumerate(self._starts):
            self._guess(self._held[address], place)
        born: dict[int, Life] = {}
        freed: dict[int | None, Life] = {}
        for life in self._lives:
            born[life.born] = freed[life.freed] = life
        for number, event in enumerate(self._memory.events):
            if event.action == "alloc" and number in born:
                unlike += self._begin(born[number])
            elif number in freed:
                address = freed[number].address
                if self._held.pop(address, None):
                    del self._starts[bisect_left(self._starts, address)]
            elif event.action.startswith("segment_"):
                _change(self._spans, event, forwards=True)
        return unlike

    def _guess(self, life: Life, place: int) -> None:
        """Round an old block's size; it may have taken room behind it that was too little."""
        if not life.size:
            life.size = _round(life.requested)
            more = self._room(life.address, place + 1) - life.size
            if life.size > SMALL and more > 0 and not self._memory.is_expandable:
                life.doubt = min(SMALL, more)

    def _begin(self, life: Life) -> bool:
        """Give a new block its size; return true if the end shows another one."""
        place = bisect_left(self._starts, life.address)
        if place:  # free room begins where the block before it ends
            before = self._held[self._starts[place - 1]]
            more = life.address - before.address - before.size
            if 0 <= more <= before.doubt:
                before.size += more
                before.doubt = 0
        size = _round(life.requested)
        more = self._room(life.address, place) - size
        if size > SMALL and 0 < more <= SMALL and not self._memory.is_expandable:
            size += more
        is_unlike = life.size not in (0, size)
        life.size = life.size or size
        insort(self._starts, life.address)
        self._held[life.address] = life
        return is_unlike

    def _room(self, address: int, place: int) -> int:
        """Return the bytes from an address to the next block, or to its segment's end."""
        span = bisect_right(self._spans, (address, 2**63)) - 1
        end = self._spans[span][1] if span >= 0 else address
        if place < len(self._starts):
            end = min(end, self._starts[place])
        return max(0, end - address)


def _check_number(count: int, what: str) -> None:
    if count > MOST_AT_ONCE:
        raise SnapshotError(f"more than {MOST_AT_ONCE:,} {what} at once")


def _round(size: int) -> int:
    return max(SMALLEST, -(-size // SMALLEST) * SMALLEST)


def find_totals(events: list[Event], lives: list[Life]) -> list[int]:
    """Return the bytes that the job holds after each event, and in the last place before them."""
    change = [0] * (len(events) + 1)
    for life in lives:
        change[life.born] += life.size  # the last place is that of older blocks
        if life.asked is not None and life.asked < len(events):
            change[life.asked] -= life.size
    before, *totals = itertools.accumulate(change, initial=change.pop())
    return [*totals, before]


def _find_peak(totals: list[int]) -> int:
    """Return the event after which most is held, or `BEFORE` if that is before them."""
    peak = BEFORE
    for number, total in enumerate(totals[:-1]):
        if total > totals[peak]:
            peak = number
    return peak


def _spans_at(memory: DeviceMemory, time: int) -> list[Span]:
    """Return the reserved ranges after an event, from those at the end."""
    spans = sorted(memory.segments)
    for number in range(len(memory.events) - 1, time, -1):
        if memory.events[number].action.startswith("segment_"):
            _change(spans, memory.events[number], forwards=False)
    return spans


def _change(spans: list[Span], event: Event, *, forwards: bool) -> None:
    """Reserve or release a range."""
    start, end = event.address, event.address + event.size
    if (event.action in ("segment_alloc", "segment_map")) is forwards:
        insort(spans, (start, end))
        _check_number(len(spans), "segments")
        return
    first = max(0, bisect_left(spans, (start, 0)) - 1)
    last = bisect_left(spans, (end, 0))
    kept = []
    for low, high in spans[first:last]:
        for part in ((low, min(high, start)), (max(low, end), high)):
            if part[0] < part[1]:
                kept.append(part)
    spans[first:last] = kept
