"""Follow the frames of a thread of another process while it runs.

The thread may return from a frame, or free a code object, while this reads. Frames are read three
times within some microseconds, and only count if they were the same each time. The names of their
codes only count if they were known before, and are still the same afterwards. Else the reading is
torn, and not shown.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

from profkit.eye.codes import Code, CodeReader
from profkit.eye.layout import UnknownPythonError, find_layout, find_runtime
from profkit.eye.lines import find_line
from profkit.eye.memory import Memory

MOST_DEPTH = 128
"""Outer frames of a deeper stack are dropped, which bounds the time of a sample."""

MOST_TRIES = 8
MOST_THREADS = 4_096
MOST_STACKS = 1_000

PASSES = 3
PAGE = 4_096
NEAR = 512
"""Frames that are no further apart are read as one piece."""

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


class Frame(NamedTuple):
    """What is read of a frame, and where."""

    address: int
    back: int
    code: int
    instruction: int
    owner: int


class _Names(NamedTuple):
    """What is read to see that the codes of a stack are still those that are known."""

    codes: list[Code | None]
    flat: list[int]
    known: bytes


class _Window:
    """Pieces of memory that hold the frames that a thread had lately; the innermost is last."""

    def __init__(self, places: list[int], size: int, above: int) -> None:
        self.places = places
        self.entered: list[int] = []
        """Before 3.13, these point to the frame: places on the stack of C, which come and go."""
        regions: list[list[int]] = []
        for place in sorted(places):
            if regions and place - regions[-1][1] < NEAR:
                regions[-1][1] = place + size
            else:
                regions.append([place, place + size])
        for region in regions:
            if region[0] <= places[-1] < region[1]:
                # Not into the next page, which need not exist.
                region[1] = max(region[1], min(region[1] + above, (region[1] | (PAGE - 1)) + 1))
        self.flat = [number for start, end in regions for number in (start, end - start)]
        self.size = sum(self.flat[1::2])
        self._starts = [start for start, _ in regions]
        self._ends = [end for _, end in regions]
        sizes = itertools.accumulate(self.flat[1::2], initial=0)
        self._offsets = list(itertools.islice(sizes, len(regions)))

    def find(self, address: int, size: int) -> int:
        """Return where a frame is in what is read; -1 if it is not read."""
        number = bisect.bisect_right(self._starts, address) - 1
        if number < 0 or address + size > self._ends[number]:
            return -1
        return self._offsets[number] + address - self._starts[number]


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
        window = self._windows.get(thread) or self._walk(thread)
        layout = self.layout
        pieces = [thread.address, layout.thread_size]
        for place in window.entered:
            pieces += (place, 8)
        ahead = sum(pieces[1::2])
        length = ahead + window.size
        content = self._memory.read_flat([*pieces, *window.flat] * PASSES, PASSES * length)
        if content is None:
            self._windows.pop(thread, None)
            return None
        if struct.unpack_from("Q", content, layout.thread_id)[0] != thread.number:
            return None
        at = layout.frame_of_thread
        innermost = struct.unpack_from("Q", content, at)[0]
        if layout.entered is not None:
            entered = innermost + layout.entered
            if entered not in window.entered:
                window.entered = [*window.entered[-MOST_ENTERED:], entered]
                return None
            at = layout.thread_size + 8 * window.entered.index(entered)
            innermost = struct.unpack_from("Q", content, at)[0]
        frames, offsets = self._follow(content, innermost, ahead, window)
        if frames is None:
            self._walk(thread)
            return None
        frames = self._compare(content, length, at, frames, offsets)
        return None if frames is None else self._name(frames)

    def _walk(self, thread: Thread) -> _Window:
        """Follow the frames one by one, so that the next reading has most of them."""
        layout, read, places = self.layout, self._memory.number, list[int]()
        address = read(thread.address + layout.frame_of_thread)
        if address and layout.entered is not None:
            address = read(address + layout.entered)
        while address and len(places) < MOST_DEPTH:
            places.append(address)
            address = read(address + layout.back)
        known = self._windows.get(thread)
        joined = dict.fromkeys(known.places if known else ())
        for place in places[::-1]:  # those of now come last
            joined.pop(place, None)
            joined[place] = None
        above = 0 if self._is_old else ABOVE
        window = _Window([*joined][-MOST_PLACES:], layout.frame.size, above)
        window.entered = known.entered if known else []
        self._windows[thread] = window
        return window

    def _follow(
        self, content: bytes, address: int, ahead: int, window: _Window
    ) -> tuple[list[Frame] | None, list[int]]:
        """Return the frames of the first pass; none if one of them is in no piece."""
        frames: list[Frame] = []
        offsets: list[int] = []
        size = self.layout.frame.size
        while address and len(frames) < MOST_DEPTH:
            offset = window.find(address, size)
            if offset < 0:
                return None, offsets
            offsets.append(ahead + offset)
            frames.append(self._parse(address, content, ahead + offset))
            address = frames[-1].back
        return frames, offsets

    def _compare(
        self, content: bytes, length: int, at: int, frames: list[Frame], offsets: list[int]
    ) -> list[Frame] | None:
        """Return the frames as they were in the last pass, if all passes show the same.

        The innermost frame may have gone on to another instruction meanwhile.
        """
        if not frames or content[:length] * PASSES == content:
            return frames
        size, first, pointer = self.layout.frame.size, frames[0], self.layout.frame_of_thread
        same = [(pointer, pointer + 8), (at, at + 8)]
        same += [(offset, offset + size) for offset in offsets[1:]]
        for begin in range(length, PASSES * length, length):
            for start, end in same:
                if content[start:end] != content[begin + start : begin + end]:
                    return None
            frames[0] = self._parse(first.address, content, begin + offsets[0])
            if frames[0]._replace(instruction=first.instruction) != first:
                return None
        return frames

    def _parse(self, address: int, content: bytes, offset: int) -> Frame:
        values = self.layout.frame.unpack_from(content, offset)
        back, code, instruction, owner = self.layout.order
        of = 0 if self._is_old else values[owner]
        return Frame(address, values[back], values[code] & ~7, values[instruction], of)

    def _name(self, frames: list[Frame]) -> Stack | None:
        """Return codes and lines, if the codes are those that were known before."""
        names = self._names_of(frames)
        if names is None:
            return None
        if self._memory.read_flat(names.flat, len(names.known)) != names.known:
            self._codes.forget(frame.code for frame in frames)
            self._names.clear()
            self._names_of(frames)  # for the next try
            return None
        stack: Stack = []
        for frame, code in zip(frames, names.codes, strict=True):
            if code is not None and not self._add(stack, code, frame):
                return None
        return stack

    def _names_of(self, frames: list[Frame]) -> _Names | None:
        """Return the code of each frame, which is none for those that only mark a place.

        None are returned if one of them was not known before.
        """
        key = tuple([frame.code for frame in frames])
        known = self._names.get(key)
        if known is not None:
            return known
        codes: list[Code | None] = []
        for frame in frames:
            is_code = frame.owner not in self.layout.marks
            codes.append(self._codes.known.get(frame.code) if is_code else None)
            if is_code and codes[-1] is None:
                self._codes.learn(frame.code)
        are_known = [code is not None or frame.owner in self.layout.marks
                     for frame, code in zip(frames, codes, strict=True)]  # fmt: skip
        if not all(are_known):
            return None
        unique = list(dict.fromkeys(code for code in codes if code is not None))
        flat = [number for code in unique for number in code.flat]
        found = _Names(codes, flat, b"".join([code.known for code in unique]))
        if len(self._names) >= MOST_STACKS:
            self._names.clear()
        self._names[key] = found
        return found

    def _add(self, stack: Stack, code: Code, frame: Frame) -> bool:
        """Add where a frame is. One that has not begun is left out, as Python does."""
        if self._is_old:
            place = frame.instruction
        else:
            offset = frame.instruction - frame.code - self.layout.code[4]
            place = offset // 2
            if offset % 2:
                return False
        if not -1 <= place < code.size:
            return False
        if place < code.begins and frame.owner != GENERATOR:
            return True
        line = code.lines.get(place)
        if line is None:
            line = code.lines[place] = find_line(code, place, self.layout.version)
        stack.append((code, line))
        return True
