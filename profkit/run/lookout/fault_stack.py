"""Have the stack written when no Python code can run, and when the process crashes.

While native code holds the interpreter, none of our threads can look. A thread in C (`_held.c`)
sees that, and writes all stacks. A signal that ends the process, such as SIGSEGV or SIGABRT, has
the stack written, too, and then does what it would have done without us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from profkit.hangs.processes import caught_signals
from profkit.own_process import threads_are_patched

LONGEST_BEAT_S = 1.0
BEATS = 8
"""Python code says so often that it runs, in the time after which the stacks are written."""

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a runtime inside the process may catch because it recovers from them."""

_held: Any = None
with contextlib.suppress(ImportError):  # no compiler, or a Python whose frames are not known
    from profkit.run.lookout import _held


class FaultStack:
    """The file with the stacks of this process, and what has them written."""

    def __init__(self, path: Path, after_s: float) -> None:
        self._path = path
        self._after_s = after_s
        self._is_open = self._is_enabled = False
        self._ended = threading.Event()

    def open(self) -> None:
        """Open the file, and begin to watch."""
        if _held is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            self._is_open = _held.write_to(file)
        finally:
            os.close(file)
        if self._is_open and not threads_are_patched() and _held.watch(self._after_s):
            threading.Thread(target=self._beat, name="profkit-beat", daemon=True).start()

    @property
    def size(self) -> int | None:
        """The bytes written so far; null if there is no file.

        The job may have closed the descriptor, and its number may be that of another file.
        """
        with contextlib.suppress(OSError):
            return self._path.stat().st_size
        return None

    def _beat(self) -> None:
        """Say that Python code runs; this thread does nothing else, so that no disk delays it."""
        pause_s = min(LONGEST_BEAT_S, self._after_s / BEATS)
        while not self._ended.wait(pause_s):
            if threads_are_patched():
                _held.unwatch()
                return
            _held.beat()

    def enable(self) -> None:
        """Have the stack written at a crash, unless something else decides what a crash does.

        Frameworks set handlers of their own while they are imported, and ours must come after.
        """
        if self._is_open and not self._is_enabled and not recovers_from_crashes():
            self._is_enabled = True
            _held.catch()

    def move(self, path: Path) -> None:
        """Rename the file, because the rank is another one than it seemed."""
        if self._is_open:
            os.rename(self._path, path)
        self._path = path

    def close(self) -> None:
        """Write no stack from now on, and remove the file if nothing was written."""
        self._ended.set()
        if self._is_open:
            self._is_open = False
            _held.unwatch()
            _held.release()
            if self._path.stat().st_size == 0:
                self._path.unlink()


def recovers_from_crashes() -> bool:
    """Return true if native code in this process catches a signal at which others crash.

    A runtime such as Java's repairs what it caught, and could not after our handler. Paddle only
    prints a stack and ends the process.
    """
    if "paddle" in sys.modules:
        return False
    caught = caught_signals(os.getpid())
    return caught is None or bool(CRASHES & caught)
