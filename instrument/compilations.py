"""Records when a framework's compiler worked, which guards failed, and where graphs broke.

A compilation is a phase inside the one that it interrupts, and a row of `events`, because control
steps (recording off) have no phases. Readers exclude the steps in which a compiler worked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from types import CodeType

from profkit.environment import hide_secrets
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, EventRow
from profkit.vocab import EventKind, Phase

MOST_NAMES = 200
"""Names of one process: guards hold sizes, so that each failure may have another name."""

MORE = "more functions"
"""Stands for those beyond the limit."""

MOST_LETTERS = 200
"""Longer reasons are cut; a compiler may append the whole stack."""

_RESUMED = "torch_dynamo_resume_in_"
_RESUMED_BY_PADDLE = re.compile(r"(?:\$resume_\d+@)+(.+)_[0-9a-f]{5}")
"""Names of what follows a graph break."""

_EXPLANATION = re.compile(
    r"^\s*Explanation: (.*?)(?=^\s*Hint: |^\s*Developer debug context: |\Z)",
    re.DOTALL | re.MULTILINE,
)
"""Of the reasons of torch 2.7 and later."""

_JUMP = "generic_jump "
_BRANCH = "a branch depends on the values of a tensor"
"""The reason of torch for a graph that ends at a branch, and what it means."""


class Compilations:
    """Makes the rows of one process."""

    def __init__(self, recorder: Recorder, events: Append, follows: Callable[[], bool]) -> None:
        self.clock = recorder.clock
        self._recorder = recorder
        self._events = events
        self._follows = follows
        """Returns true if the calling thread is the one that trains, or may become it."""
        self._names: set[str] = set()

    def add(self, begun_ns: int, ended_ns: int, name: str, *, guard: str | None = None) -> None:
        """Record a compilation of the calling thread; `guard` is what made it compile again."""
        kind, reason = EventKind.COMPILED, None
        if guard is not None:
            kind, reason = EventKind.RECOMPILED, cut(guard)
            reason = reason if self._is_known(f"{name}: {reason}") else None
        took_ns = float(ended_ns - begun_ns)
        self._events(EventRow(None, ended_ns, kind, name, reason, took_ns))
        if self._follows():
            self._recorder.keep_inner(Phase.COMPILE.value, name or "compile", begun_ns, ended_ns)

    def add_breaks(self, breaks: Iterable[str]) -> None:
        """Record places at which a function was divided."""
        for each in breaks:
            place = each if self._is_known(each) else "more places"
            self._events(EventRow(None, self.clock(), EventKind.GRAPH_BREAK, place))

    def add_limit(self, name: str, limit: float) -> None:
        """Record that a function is compiled no more, because it has this many variants."""
        function = name if self._is_known(name) else MORE
        row = EventRow(None, self.clock(), EventKind.OVER_LIMIT, function, None, limit)
        self._events(row)

    def add_failure(self, name: str, reason: str) -> None:
        """Record that a function could not be compiled, and runs uncompiled."""
        what = (name, reason) if self._is_known(f"{name}: {reason}") else (MORE, None)
        self._events(EventRow(None, self.clock(), EventKind.NOT_COMPILED, *what))

    def _is_known(self, name: str) -> bool:
        """Return true for a name that is kept; false for a new one if there are too many."""
        if name not in self._names and len(self._names) >= MOST_NAMES:
            return False
        self._names.add(name)
        return True


def name_code(code: CodeType) -> str:
    """Return a function's name and place: `forward (train.py:12)`."""
    name = code.co_name.removeprefix(_RESUMED)
    if resumed := _RESUMED_BY_PADDLE.fullmatch(name):
        name = f"rest of {resumed[1]}"
    elif name != code.co_name:  # what follows a graph break is a function of its own
        name = f"rest of {name.rpartition('_at_')[0] or name}"
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def cut(text: str) -> str:
    """Return the first line of a reason, of bounded length and without secrets."""
    first = hide_secrets(next(filter(None, map(str.strip, text.splitlines())), ""))
    return first if len(first) <= MOST_LETTERS else f"{first[:MOST_LETTERS]}..."


def explain_reason(text: str) -> str:
    """Return a reason of torch's compiler with its explanation, of bounded length.

    The first line names a kind of problem, and the explanation the call. The hints would fill a
    screen, and what torch calls the developer's context quotes values of the job.
    """
    first, explained = cut(text), _EXPLANATION.search(text)
    if first.startswith(_JUMP):
        return _BRANCH
    if explained is not None:
        return f"{first}: {cut(' '.join(explained[1].split()))}"
    if first.endswith(":"):  # what follows is the error of a backend
        return f"{first} {cut(text.strip().partition(chr(10))[2])}"
    return first
