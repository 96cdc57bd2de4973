"""Follow the frames of a thread of another process while it runs.

The thread may return from a frame, or free a code object, while this reads. Frames are read six
times within some microseconds, and only those count that were there each time. The names of their
codes only count if they were known before, and are still the same afterwards. Else the reading is
torn, and not shown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from profkit.eye.codes import Code, CodeReader
from profkit.eye.following import MOST_DEPTH, follow
from profkit.eye.layout import Layout, UnknownPythonError, find_layout, find_runtime
from profkit.eye.lines import find_line
from profkit.eye.memory import Memory

MOST_TRIES = 8
MOST_THREADS = 4_096
MOST_STACKS = 1_000

PASSES = 6
PAGE = 4_096
NEAR = 512
"""Places that are no further apart are read as one piece."""

ABOVE = 1_024
"""So much is read above the innermost frame, where frames are one behind the other."""

MOST_ENTERED = 7
MOST_PLACES, FRESH_READS = 1_024, 256
"""Frames that were seen lately, which are read in the hope that they are still there."""

GENERATOR = 1
"""The owner of a frame that a generator keeps."""


class Thread(NamedTuple):
    """A thread of the interpreter: its address there, and its number."""

    address: int
    number: int


Stack = list[tuple[Code, int]]
"""Codes and lines, innermost first."""


class _Names(NamedTuple):
    """What is read to see that the codes of a stack are still those that are known."""

    codes: list[Code | None]
    pieces: bytes
    known: bytes


HIGHEST = 1 << 56
"""Programs have no memory there: what was taken for an address is none."""


class _Window:
    """Pieces of memory that hold the frames that a thread had lately; the innermost is last."""

    def __init__(self, places: list[int], entered: list[int], layout: Layout, head: int) -> None:
        self.places, self.entered = places, entered
        """Before 3.13, places on the stack of C point to the frame. They come and go."""
        size = layout.frame_size
        above = 0
        if layout.owner is not None:
            above = ABOVE
        regions = _join(places, size)
        for region in regions:
            if region[0] <= places[-1] < region[1]:
                # Not into the next page, which need not exist.
                region[1] = max(region[1], min(region[1] + above, (region[1] | (PAGE - 1)) + 1))
        ways = _join(entered, 8)
        flat, offset, packed = [head, layout.thread_size], layout.thread_size, list[int]()
        for start, end in ways + regions:
            flat += (start, end - start)
            packed += (start, end, offset)
            offset += end - start
        self.length = offset
        self.pieces = struct.pack(f"{len(flat)}Q", *flat) * PASSES
        self.regions = struct.pack(f"{len(packed)}Q", *packed)
        owner = -1 if layout.owner is None else layout.owner
        of_frame = layout.frame_size, layout.back, layout.code_of_frame, layout.instruction, owner
        by_way = -1 if layout.entered is None else layout.entered
        self.form = struct.pack("9q", PASSES, offset, *of_frame, layout.frame_of_thread, by_way)
        """What `follow` must know."""


def _join(places: Iterable[int], size: int) -> list[list[int]]:
    """Return pieces of memory that hold places of a size; those that are near are in one."""
    found: list[list[int]] = []
    for place in sorted(places):
        if found and place - found[-1][1] < NEAR:
            found[-1][1] = place + size
        else:
            found.append([place, place + size])
    return found


class StackReader:
    """Reads stacks of one process. Of `taken` readings, `torn` were dropped."""

    def __init__(self, pid: int, version: tuple[int, int]) -> None:
        self._memory = Memory(pid)
        self._memory.open()
        self._runtime = find_runtime(pid)
        self.layout = find_layout(self._memory, self._runtime, version)
        self._codes = CodeReader(self._memory, self.layout)
        self._names: dict[tuple[int, ...], _Names] = {}
        self._windows: dict[Thread, _Window] = {}
        self._roots: dict[Thread, tuple[int, ...]] = {}
        self._outer: dict[tuple[tuple[int, ...], tuple[int, ...]], Stack] = {}
        self._is_old = self.layout.owner is None
        self.taken = self.torn = 0

    def close(self) -> None:
        self._memory.close()

    def threads(self) -> Iterator[Thread]:
        """Yield the threads of the main interpreter that can be read now."""
        layout, number = self.layout, self._memory.number
        interpreter = number(self._runtime + layout.interpreters)
        address = number(interpreter + layout.threads) if interpreter else None
        for _ in range(MOST_THREADS):
            if not address:
                return
            head = self._memory.read([(address, layout.thread_size)])
            if head is None:
                return
            yield Thread(address, struct.unpack_from("Q", head, layout.thread_id)[0])
            address = struct.unpack_from("Q", head, layout.next_thread)[0]

    def find(self, number: int) -> Thread:
        """Return the thread with the number that `threading.get_ident` gives it.

        One that begins has the number of the thread that starts it, and comes before that.
        """
        found = [thread for thread in self.threads() if thread.number == number]
        if not found:
            raise UnknownPythonError("the thread is not where it should be")
        return found[-1]

    def read(self, thread: Thread) -> Stack | None:
        """Return where a thread is; `None` if it did not stand still for long enough."""
        self.taken += 1
        if self.taken % FRESH_READS == 0:
            self._windows.clear()
        for _ in range(MOST_TRIES):
            found = self._try(thread)
            if found is not None:
                return found
        self.torn += 1
        return None

    def _try(self, thread: Thread) -> Stack | None:
        layout, window = self.layout, self._windows.get(thread) or self._walk(thread)
        content = self._memory.read_packed(window.pieces, PASSES * window.length)
        if content is None:
            self._windows.pop(thread, None)
            return None
        if struct.unpack_from("Q", content, layout.thread_id)[0] != thread.number:
            return None
        found = follow(content, window.form, window.regions)
        if found is None:
            self._walk(thread)
        if not found:
            return None
        # While a generator ends, its frame may be cut off from those outside for a moment, which is
        # long if the thread loses its core there.
        root, before = found[0][-1:], self._roots.get(thread)
        self._roots[thread] = root
        is_cut = found[2][-1:] == (GENERATOR,) or root != before
        if is_cut and len(found[0]) < MOST_DEPTH:
            return None
        return self._name(*found)

    def _walk(self, thread: Thread) -> _Window:
        """Follow the frames one by one, so that the next reading has most of them."""
        layout, read, places = self.layout, self._memory.number, list[int]()
        known = self._windows.get(thread)
        entered = known.entered if known else []
        address = read(thread.address + layout.frame_of_thread)
        if address and address < HIGHEST and layout.entered is not None:
            place = address + layout.entered
            address = read(place)
            if address and place not in entered:
                entered = [*entered[-MOST_ENTERED:], place]
        while address and address < HIGHEST and len(places) < MOST_DEPTH:
            places.append(address)
            address = read(address + layout.back)
        joined = dict.fromkeys(known.places if known else ())
        for place in places[::-1]:  # those of now come last
            joined.pop(place, None)
            joined[place] = None
        kept = [*joined][-MOST_PLACES:]
        window = self._windows[thread] = _Window(kept, entered, layout, thread.address)
        return window

    def _name(
        self, codes: tuple[int, ...], instructions: tuple[int, ...], owners: tuple[int, ...]
    ) -> Stack | None:
        """Return codes and lines, if the codes are those that were known before."""
        names = self._names.get(codes) or self._names_of(codes, owners)
        if names is None:
            return None
        if self._memory.read_packed(names.pieces, len(names.known)) != names.known:
            self._codes.forget(codes)
            self._names.clear()
            self._outer.clear()
            self._names_of(codes, owners)  # for the next try
            return None
        key = codes, instructions[1:]
        outer = self._outer.get(key)
        if outer is None:
            outer = []
            for place in range(1, len(codes)):
                if not self._add(
                    outer, names.codes[place], codes[place], instructions[place], owners[place]
                ):
                    return None
            if len(self._outer) >= MOST_STACKS:
                self._outer.clear()
            self._outer[key] = outer
        stack: Stack = []
        if codes and not self._add(stack, names.codes[0], codes[0], instructions[0], owners[0]):
            return None
        return stack + outer

    def _names_of(self, addresses: tuple[int, ...], owners: tuple[int, ...]) -> _Names | None:
        """Return the code of each frame, which is none for those that only mark a place.

        `None` is returned if one of them was not known before.
        """
        codes: list[Code | None] = []
        is_new = False
        for address, owner in zip(addresses, owners, strict=True):
            code = None
            if owner not in self.layout.marks:
                code = self._codes.known.get(address)
                if code is None:
                    is_new = True
                    self._codes.learn(address)
            codes.append(code)
        if is_new:
            return None
        unique = list(dict.fromkeys(code for code in codes if code is not None))
        flat = [number for code in unique for number in code.flat]
        pieces, known = struct.pack(f"{len(flat)}Q", *flat), [code.known for code in unique]
        if len(self._names) >= MOST_STACKS:
            self._names.clear()
        found = self._names[addresses] = _Names(codes, pieces, b"".join(known))
        return found

    def _add(
        self, stack: Stack, code: Code | None, address: int, instruction: int, owner: int
    ) -> bool:
        """Add where a frame is. One that has not begun is left out, as Python does."""
        if code is None:
            return True
        place = instruction
        if not self._is_old:
            place, rest = divmod(instruction - address - self.layout.code[4], 2)
            if rest:
                return False
        if not -1 <= place < code.size:
            return False
        if place < code.begins and owner != GENERATOR:
            return True
        line = code.lines.get(place)
        if line is None:
            line = code.lines[place] = find_line(code, place, self.layout.version)
        stack.append((code, line))
        return True
