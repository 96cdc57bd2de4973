"""Have the stack written when no Python code can run, and when the process crashes.

While native code holds the interpreter, none of our threads can look. A thread in C (`_held.c`)
sees that, and has Python's fault handler write all stacks. A signal that ends the process, such as
SIGSEGV or SIGABRT, has the stack written, too, and then does what it would have done without us.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from profkit.hangs.processes import caught_signals
from profkit.instrument.guard import Patches

LONGEST_BEAT_S = 1.0
BEATS = 8
"""Python code says so often that it runs, in the time after which the stacks are written."""

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a runtime inside the process may catch because it recovers from them."""

_held: Any = None
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.run.lookout import _held


class FaultStack:
    """The handler of this process. Crashes are left to the job if it uses the handler itself."""

    def __init__(self, path: Path, after_s: float) -> None:
        self._path = path
        self._after_s = after_s
        self._file: TextIO | None = None
        self._handler: Any = None
        self._patches = Patches()
        self._is_enabled = self._is_jobs = False
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def open(self) -> None:
        """Open the file, and begin to watch."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = open(os.open(self._path, flags, 0o600), "w")  # noqa: SIM115  # kept open
        self._is_jobs = "faulthandler" in sys.modules  # other code may hold its functions
        import faulthandler

        self._handler = faulthandler
        self._enable = faulthandler.enable
        for name in ("enable", "disable"):
            self._patches.replace(faulthandler, name, self._wrap)
        self._patches.replace(faulthandler, "is_enabled", self._wrap_is_enabled)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._forget,
        )
        if _held is not None and _held.watch(self._file.fileno(), self._after_s):
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
            _held.beat()

    def _before_fork(self) -> None:
        self._lock.acquire()  # until the fork is over, no other thread may set a handler

    def _after_fork(self) -> None:
        self._lock.release()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._disable()  # a crash of the child is not one of the rank
        self._file = None

    def enable(self) -> None:
        """Have the stack written at a crash, unless something else decides what a crash does.

        Frameworks set handlers of their own while they are imported, and ours must come after.
        """
        with self._lock:
            if self._file is None or self._is_enabled or self._is_jobs:
                return
            if not self._handler.is_enabled() and not recovers_from_crashes():
                self._enable(file=self._file)
                self._is_enabled = True

    def _disable(self) -> None:
        if self._is_enabled:
            self._is_enabled = False
            self._handler.disable()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            self._is_enabled, self._is_jobs = False, True  # the job decides from now on
            return original(*args, **kwargs)

        return change

    def _wrap_is_enabled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def is_enabled() -> bool:
            return not self._is_enabled and original()

        return is_enabled

    def move(self, path: Path) -> None:
        """Rename the file, because the rank is another one than it seemed."""
        if self._file is not None:
            os.rename(self._path, path)
        self._path = path

    def close(self) -> None:
        """Switch the handler off, and remove the file if nothing was written."""
        self._ended.set()
        if _held is not None:
            _held.end()
        self._patches.undo()
        with self._lock:
            self._disable()
            file, self._file = self._file, None
        if file is not None:
            file.close()
            if self._path.stat().st_size == 0:
                self._path.unlink()


def recovers_from_crashes() -> bool:
    """Return true if native code in this process catches a signal at which others crash.

    A runtime such as Java's repairs what it caught, and could not after Python's handler. Paddle
    only prints a stack and ends the process.
    """
    if "paddle" in sys.modules:
        return False
    caught = caught_signals(os.getpid())
    return caught is None or bool(CRASHES & caught)
