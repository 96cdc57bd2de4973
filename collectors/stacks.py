"""Lines of Python that the training thread runs, 20 times per second; only if it is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.collectors._origins import Origins, cut
from profkit.collectors._thread_stacks import Look, ahead_s, can_look, look, wait_until
from profkit.collectors.base import Inside, Reading

DENSE_SAMPLES = 72_000
"""An hour of samples. Later ones are taken ever more rarely, so that their sum grows slowly.

A sample stands for the time in `every_ns`, so that rare ones count for more.
"""

INTERVAL_S = 0.05
"""Mean time between two samples."""

READS_PER_COUNT = 200
"""The number of stored samples is a reading once in so many samples."""

MOST_FRAMES = 50_000
"""Frames in the dictionary. Afterwards, stacks with new frames are stored without their place."""


class StackSampler:
    """Looks at the training thread from its own thread.

    It keeps no object of the job but the code objects of the last stack: each stack becomes names
    and line numbers at once. In some versions of Python it can only look once the job releases the
    interpreter, which busy Python does when it is asked after 5 ms, or when it calls something that
    releases it. `late_ns` lets a reader allow for that. While recording is off (control steps) it
    does not look, so that the difference to those steps holds its cost.
    """

    name = "stacks"
    on_request = True
    interval_s = INTERVAL_S

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._random = random.Random()  # the job's own generator must not move
        self._inside: Inside | None = None
        self._frames = FrameTable(lambda row: None)
        self._began_ns = self._stored = self._reads = self._read_ns = self._due_ns = 0

    def wait_s(self) -> float:
        """Return a random time around the mean: in a loop of that period, one line would be all."""
        wait_s = self._every_s() * self._random.uniform(0.5, 1.5)
        self._due_ns = self._read_ns + int(wait_s * 1e9)
        return wait_s

    @property
    def ahead_s(self) -> float:
        return ahead_s()

    def why_not(self) -> str:
        if can_look():
            return ""
        return "this Python does not show the stacks of its threads; it needs CPython"

    def watch(self, inside: Inside) -> None:
        """Sample this thread from now on, into these tables."""
        self._frames = FrameTable(inside.frames)
        self._began_ns, self._stored, self._reads, self._due_ns = self._clock(), 0, 0, 0
        self._inside = inside

    def close(self) -> None:
        self._inside = None

    def read(self) -> Iterator[Reading]:
        """Store one sample as a row of `stacks`; now and then, count what was stored."""
        inside = self._inside
        if inside is not None and not inside.is_recording():
            # To look after this wait would show the line on which the job let the thread go on.
            wait_until(self._due_ns, self._clock)
        elif inside is not None:
            self._store(inside, look(inside.thread, self._due_ns, self._clock))
        self._read_ns = self._clock()
        self._reads += 1
        if self._reads % READS_PER_COUNT == 1:
            yield Reading("stacks_count", self._stored)

    def _store(self, inside: Inside, seen: Look) -> None:
        stack = self._frames.store(seen.places)
        if stack != NOTHING:
            every_ns = int(self._every_s() * 1e9) + seen.longer_ns
            inside.stacks((seen.time_ns, seen.late_ns, every_ns, inside.thread_name, stack))
            self._stored += 1

    def _every_s(self) -> float:
        return mean_wait_s((self._clock() - self._began_ns) / 1e9 if self._inside else 0.0)


def mean_wait_s(elapsed_s: float) -> float:
    """Return the mean time between two samples after this time of sampling."""
    return max(INTERVAL_S, elapsed_s / DENSE_SAMPLES)


class FrameTable:
    """Numbers the frames of stacks, and hands over each new one once."""

    def __init__(self, append: Callable[[tuple[Any, ...]], None]) -> None:
        self._append = append
        self._frames: dict[tuple[int, str, str, int], int] = {}
        self._origins = Origins()
        self._known: dict[str, tuple[str, str]] = {}
        self._last: list[tuple[CodeType, int]] = []
        self._last_ids: list[int] = []

    def store(self, places: list[tuple[CodeType, int]]) -> int | None:
        """Return the id of the innermost frame; `None` if the table is full.

        Two samples of a thread differ in few inner frames; the others are not looked up again.
        """
        same = _alike(places, self._last)
        ids = self._last_ids[:same]
        parent = ids[-1] if ids else NOTHING
        for code, line in places[len(places) - same - 1 :: -1] if same < len(places) else ():
            found = self._below(parent, code, line)
            if found is None:
                return None
            ids.append(parent := found)
        self._last, self._last_ids = places, ids
        return parent

    def _below(self, parent: int, code: CodeType, line: int) -> int | None:
        """Return the frame's id; that of its parent if it is one of profkit's own."""
        file = code.co_filename
        if file not in self._known:
            if len(self._known) >= MOST_FRAMES:  # generated code has a file name each
                self._known.clear()
            self._known[file] = (self._origins.of(file), self._origins.shown(file))
        origin, path = self._known[file]
        if not origin:
            return parent
        function = getattr(code, "co_qualname", code.co_name)
        key = (parent, file, function, line)
        frame = self._frames.get(key)
        if frame is None and len(self._frames) < MOST_FRAMES:
            frame = self._frames[key] = len(self._frames)
            above = None if parent == NOTHING else parent
            self._append((frame, above, path, cut(function), line, origin))
        return frame


def _alike(places: list[tuple[CodeType, int]], others: list[tuple[CodeType, int]]) -> int:
    """Return how many outer frames two stacks have in common."""
    same = 0
    for (code, line), (other, at) in zip(reversed(places), reversed(others), strict=False):
        if code is not other or line != at:
            break
        same += 1
    return same


NOTHING = -1
"""The id of no frame: above the outermost one, and of a stack that is all profkit's."""


COLLECTOR = StackSampler()
