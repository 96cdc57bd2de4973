"""Numbers the frames of stacks, for the tables `stacks` and `frames`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from profkit.collectors._origins import Origins, cut

MOST_FRAMES = 50_000
"""Frames in the dictionary. Afterwards, stacks with new frames are stored without their place."""

NOTHING = -1
"""The id of no frame: above the outermost one, and of a stack that is all profkit's."""

Places = Sequence[tuple[Any, int]]
"""Codes and lines, innermost first. A code has the names that Python gives to one."""


KnownFrames = dict[tuple[int, str, str, int], int]
"""The ids of frames by parent, file, function and line. Tables of several threads share them."""


class FrameTable:
    """Numbers the frames of stacks, and hands over each new one once."""

    def __init__(
        self,
        append: Callable[[tuple[Any, ...]], None],
        origins: Origins | None = None,
        known: KnownFrames | None = None,
    ) -> None:
        self._append = append
        self._frames: KnownFrames = {} if known is None else known
        self._origins = origins or Origins()
        self._known: dict[str, tuple[str, str]] = {}
        self._last: Places = []
        self._last_ids: list[int] = []

    def store(self, places: Places) -> int | None:
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

    def _below(self, parent: int, code: Any, line: int) -> int | None:
        """Return the frame's id; that of its parent if it is one of profkit's own."""
        file = code.co_filename
        if file not in self._known:
            if len(self._known) >= MOST_FRAMES:  # generated code has a file name each
                self._known.clear()
            self._known[file] = (self._origins.of(file), self._origins.shown(file))
        origin, path = self._known[file]
        if not origin:
            return parent
        function = getattr(code, "co_qualname", None) or code.co_name
        key = (parent, file, function, line)
        frame = self._frames.get(key)
        if frame is None and len(self._frames) < MOST_FRAMES:
            frame = self._frames[key] = len(self._frames)
            above = None if parent == NOTHING else parent
            self._append((frame, above, path, cut(function), line, origin))
        return frame


def _alike(places: Places, others: Places) -> int:
    """Return how many outer frames two stacks have in common."""
    same = 0
    for (code, line), (other, at) in zip(reversed(places), reversed(others), strict=False):
        if code is not other or line != at:
            break
        same += 1
    return same
