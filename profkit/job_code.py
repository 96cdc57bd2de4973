"""Mark the frames that are in the job's own code, also if the job is installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_PACKAGE = re.compile(r".*/(?:site|dist)-packages/([^/]+)")
_STARTER = re.compile(r".*/(?:bin|Scripts)/[^/.]+$")
"""The script that an installer writes for a command: it imports a function and calls it."""

LAST_LINE_OF_STARTER = 12
"""Installers write shorter scripts. A longer one is a program of the job."""

_FRAMEWORKS = frozenset({"torch", "paddle"})
"""Packages that start processes and threads for a job, so that they may be outside of it."""


class CodeLine(NamedTuple):
    """A frame, and whether its file is outside of packages and of Python."""

    file: str
    function: str
    line: int
    is_own: bool


def mark_own(frames: Sequence[CodeLine]) -> list[bool]:
    """Return for each frame, callers first, if it is in the job's own code.

    If none is, the job is installed. Its code is the package that the main program calls first.
    """
    marks = [frame.is_own and not is_starter(frame) for frame in frames]
    if any(marks):
        return marks
    for frame in frames:
        found = _PACKAGE.match(frame.file)
        if found is not None and found[1] not in _FRAMEWORKS:
            folder = f"{found[0]}/"
            return [f"{each.file}/".startswith(folder) for each in frames]
    return [frame.is_own for frame in frames]


def is_starter(frame: CodeLine) -> bool:
    """Return true for the script of a command that an installer wrote, such as `bin/train`."""
    is_short = frame.function == "<module>" and frame.line <= LAST_LINE_OF_STARTER
    return is_short and bool(_STARTER.match(frame.file))
