"""Records when a framework's compiler worked, which guards failed, and where graphs broke.

A compilation is a phase inside the one that it interrupts, and a row of `samples`, because control
steps (recording off) have no phases. Readers exclude the steps in which a compiler worked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from types import CodeType

from profkit.environment import hide_secrets
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, SampleRow
from profkit.vocab import (
    COMPILED,
    COMPILER,
    GRAPH_BREAK,
    NOT_COMPILED,
    OVER_LIMIT,
    RECOMPILED,
    Phase,
)

MOST_NAMES = 200
"""Names of one process: guards hold sizes, so that each failure may have another name."""

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

    def __init__(self, recorder: Recorder, samples: Append, follows: Callable[[], bool]) -> None:
        self.clock = recorder.clock
        self._recorder = recorder
        self._samples = samples
        self._follows = follows
        """Returns true if the calling thread is the one that trains, or may become it."""
        self._names: set[str] = set()

    def add(self, begun_ns: int, ended_ns: int, name: str, *, guard: str | None = None) -> None:
        """Record a compilation of the calling thread; `guard` is what made it compile again."""
        metric = f"{COMPILED}{name}"
        if guard is not None:
            metric = f"{RECOMPILED}{self._known(f'{name}: {cut(guard)}', name)}"
        took_ns = float(ended_ns - begun_ns)
        self._samples(SampleRow(None, COMPILER, metric, ended_ns, took_ns))
        if self._follows():
            self._recorder.keep_inner(Phase.COMPILE.value, name or "compile", begun_ns, ended_ns)

    def add_breaks(self, breaks: Iterable[str]) -> None:
        """Record places at which a function was divided."""
        for each in breaks:
            metric = f"{GRAPH_BREAK}{self._known(each, 'more places')}"
            self._samples(SampleRow(None, COMPILER, metric, self.clock(), 1.0))

    def add_limit(self, name: str, limit: float) -> None:
        """Record that a function is compiled no more, because it has this many variants."""
        metric = f"{OVER_LIMIT}{self._known(name, 'more functions')}"
        self._samples(SampleRow(None, COMPILER, metric, self.clock(), limit))

    def add_failure(self, name: str, reason: str) -> None:
        """Record that a function could not be compiled, and runs uncompiled."""
        metric = f"{NOT_COMPILED}{self._known(f'{name}: {reason}', 'more functions')}"
        self._samples(SampleRow(None, COMPILER, metric, self.clock(), 1.0))

    def _known(self, name: str, instead: str) -> str:
        """Return a name, or another one if there are too many."""
        if name not in self._names and len(self._names) >= MOST_NAMES:
            return instead
        self._names.add(name)
        return name


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
