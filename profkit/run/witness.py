"""See which Python processes of a job run without profkit's hooks, and why.

A hook cannot report that it was never loaded. So `profkit run` looks at the job's processes from
outside while it waits for them, until the first of them is recorded. What it saw goes into a hint.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.attached import (
    FAILED,
    HOOKED,
    MISSED,
    RUN_VARIABLE,
    STARTED,
    TRAINED,
    WITHOUT_PROFKIT,
    read_notes,
)
from profkit.text import safe_text

FIRST_PAUSE_S = 0.02
"""A short job must not end before the first look."""

LONGEST_PAUSE_S = 2.0
"""A job that loads data for an hour must not notice that somebody looks."""

GROWTH = 1.3
"""Factor from one pause to the next."""

LONGEST_SHOWN = 60
"""Characters of a command that a hint shows."""

FLAGS_WITH_VALUES = frozenset("WX")
"""Options of Python that take the next word, or the rest of theirs, as a value."""

FLAGS_WITHOUT_HOOKS = "IES"
"""Options of Python that ignore PYTHONPATH, or start without `site`."""


Note = tuple[str, int, str]
"""The event, the process and the detail of a note that a process of the job left."""


@dataclass(frozen=True)
class Unhooked:
    """A Python process that ran without the hooks."""

    command: str
    reason: str


class Witness:
    """Looks at the processes below `job` until a rank of `run` is recorded."""

    def __init__(self, run: Path, job: int, hooks: Path, *, proc: Path = Path("/proc")) -> None:
        self._run = run
        self._job = job
        self._hooks = str(hooks)
        self._proc = proc
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.unhooked: Counter[Unhooked] = Counter()

    def start(self) -> None:
        if self._proc.is_dir():
            self._thread = threading.Thread(target=self._watch, name="profkit-witness", daemon=True)
            self._thread.start()

    def stop(self, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(longest_s)

    def _watch(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._ended.wait(pause):
            if next(self._run.glob("r[0-9]*"), None) is not None:
                return
            self.look()
            pause = min(pause * GROWTH, LONGEST_PAUSE_S)

    def look(self) -> None:
        """Count the unhooked Python processes that run now, the job's and those below it."""
        waiting = [self._job]
        while waiting:
            folder = self._proc / str(waiting.pop())
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found = self._examine(folder)
                if found is not None:
                    self.unhooked[found] += 1
            with contextlib.suppress(OSError):
                children = folder / "task" / folder.name / "children"
                waiting += map(int, children.read_text().split())

    def _examine(self, folder: Path) -> Unhooked | None:
        """Return the process if it is an unhooked one of Python."""
        words = _split(folder / "cmdline")
        if not words:
            return None
        try:
            program = os.readlink(folder / "exe")
        except PermissionError:
            program = words[0]
        if not os.path.basename(program).startswith(("python", "pypy")):
            return None
        reason = self._why_unhooked(folder, words)
        if not reason:
            return None
        shown = safe_text(shlex.join(words).replace("\n", " "))
        if len(shown) > LONGEST_SHOWN:
            shown = shown[: LONGEST_SHOWN - 1] + "…"
        return Unhooked(shown, reason)

    def _why_unhooked(self, folder: Path, words: Sequence[str]) -> str:
        """Return why the process has no hooks; an empty text if it has them."""
        try:
            variables = dict(entry.partition("=")[::2] for entry in _split(folder / "environ"))
        except PermissionError:
            return (
                "it belongs to another user, so its environment cannot be read; "
                "run profkit as that user"
            )
        if RUN_VARIABLE not in variables:
            return (
                f"its environment was cleared: {RUN_VARIABLE} is missing; keep it, and PYTHONPATH"
            )
        for flag in _flags(words):
            if flag in FLAGS_WITHOUT_HOOKS:
                return (
                    f"it was started with -{flag}, which keeps Python from loading the hooks; "
                    "leave that option out"
                )
        path = variables.get("PYTHONPATH", "")
        if not path:
            return "PYTHONPATH was removed from its environment; keep it"
        if self._hooks not in path.split(os.pathsep):
            shown = safe_text(path)[:LONGEST_SHOWN]
            return f"PYTHONPATH was replaced by '{shown}'; write PYTHONPATH={shown}:$PYTHONPATH"
        return ""


def _split(file: Path) -> list[str]:
    """Return the words of a file of `/proc`, which end with a null byte each."""
    return [word.decode("utf-8", "replace") for word in file.read_bytes().split(b"\0") if word]


def _flags(words: Sequence[str]) -> Iterator[str]:
    """Yield the one-letter options of a Python command, up to its script."""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word == "-" or word.startswith("--"):
            return
        for place, letter in enumerate(word[1:], start=1):
            if letter in "cm":
                return
            yield letter
            if letter in FLAGS_WITH_VALUES:
                if word[place + 1 :] == "":
                    next(rest, None)
                break


def explain_nothing(run: Path, unhooked: Iterable[Unhooked]) -> list[str]:
    """Say in one line or two why a job left no recording, from what was seen of it."""
    notes = read_notes(str(run))
    seen = list(_explain_hooked(notes))
    found = next(iter(unhooked), None)
    if found is not None:
        seen.append(f"'{found.command}' ran without profkit's hooks: {found.reason}")
    started = set()
    for event, process, program in notes:
        if event == STARTED:
            started.add(process)
        if event == WITHOUT_PROFKIT:
            name = safe_text(program)
            seen.append(f"{name} has no profkit; install profkit in that environment")
            break
    if not seen and started:
        count = _count_processes("Python process", len(started))
        seen.append(f"{count} of the job loaded profkit's hooks, and none imported torch or paddle")
    elif not seen:
        seen.append(
            "no Python process was seen in the job; "
            "if it runs on another host or in a container, install profkit there"
        )
    return [f"nothing was recorded: {seen[0]}", *seen[1:]]


def _explain_hooked(notes: Sequence[Note]) -> Iterator[str]:
    """Say how far the processes with hooks came."""
    frameworks = {}
    missed = set()
    trained = False
    for event, process, detail in notes:
        if event == HOOKED:
            frameworks[process] = detail
        elif event == MISSED:
            missed.add(detail)
        elif event == FAILED:
            yield f"profkit's hooks of {safe_text(detail)} failed; a warning of the job says why"
            return
        trained = trained or event == TRAINED
    names = " and ".join(sorted(set(frameworks.values())))
    if trained:
        yield f"the job trained with {names or 'a framework'}, but ended before its files were open"
    elif frameworks:
        count = _count_processes("process", len(frameworks))
        yield f"{names} was imported in {count}, but no training was seen there"
    if missed and not frameworks:
        yield (
            f"{min(missed)} was imported past profkit's hooks; "
            "the job replaces Python's import system"
        )


def _count_processes(noun: str, count: int) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}es"
