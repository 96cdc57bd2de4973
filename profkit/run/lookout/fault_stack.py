"""Write the stack if native code holds the interpreter or crashes, by Python's fault handler.

The handler has one timer per process, which runs on a thread in C. It is put off again and again
while Python code can run. So it fires only if nothing else could have written the stack, and then
no thread changes the frames that it reads. A signal that ends the process, such as SIGSEGV or
SIGABRT, has the stack written, too, and then does what it would have done without us.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from profkit.instrument.guard import Patches


class FaultStack:
    """The handler of this process. It gives way if the job uses the handler itself."""

    def __init__(self, path: Path, after_s: float) -> None:
        self._path = path
        self._after_s = after_s
        self._file: TextIO | None = None
        self._handler: Any = None
        self._patches = Patches()
        self._armed = self._gave_way = self._is_enabled = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file, unless other code of the process may have set the timer already."""
        if "faulthandler" in sys.modules:
            return
        import faulthandler

        self._handler = faulthandler
        self._original = faulthandler.dump_traceback_later
        self._patches.replace(faulthandler, "dump_traceback_later", self._wrap)
        self._patches.replace(faulthandler, "enable", self._wrap_enable)
        self._patches.replace(faulthandler, "is_enabled", self._wrap_is_enabled)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = open(os.open(self._path, flags, 0o600), "w")  # noqa: SIM115  # kept open
        # A child that was forked while the timer ran would wait forever for it at its exit.
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._forget,
        )

    def _before_fork(self) -> None:
        self._lock.acquire()  # until the fork is over, no other thread may set the timer
        self._disarm()

    def _after_fork(self) -> None:
        self._lock.release()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._disable()  # a crash of the child is not one of the rank
        self._file = None

    def enable(self) -> None:
        """Have the stack written at a crash, unless the job has the handler write it elsewhere.

        Frameworks set handlers of their own while they are imported, and ours must come after.
        """
        with self._lock:
            if self._file is None or self._is_enabled:
                return
            if not self._handler.is_enabled():
                self._enable(file=self._file)
                self._is_enabled = True

    def _disable(self) -> None:
        if self._is_enabled:
            self._is_enabled = False
            self._handler.disable()

    def _wrap_enable(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._enable = original

        @functools.wraps(original)
        def enable(*args: Any, **kwargs: Any) -> Any:
            self._is_enabled = False  # the handler is the job's from now on
            return original(*args, **kwargs)

        return enable

    def _wrap_is_enabled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def is_enabled() -> bool:
            return not self._is_enabled and original()

        return is_enabled

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dump_traceback_later(*args: Any, **kwargs: Any) -> Any:
            self._armed, self._gave_way = False, True  # the job's timer replaces ours
            return original(*args, **kwargs)

        return dump_traceback_later

    def put_off(self) -> None:
        """Have the stack written if nobody calls this again in time."""
        with self._lock:
            if self._file is not None and not self._gave_way:
                self._original(self._after_s, file=self._file)
                self._armed = True

    def move(self, path: Path) -> None:
        """Rename the file, because the rank is another one than it seemed."""
        if self._file is not None:
            os.rename(self._path, path)
        self._path = path

    def _disarm(self) -> None:
        if self._armed and self._handler is not None:
            self._armed = False
            self._handler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Switch the handler off, and remove the file if nothing was written."""
        with self._lock:
            self._disarm()
            self._disable()
            file, self._file = self._file, None
        self._patches.undo()
        if file is not None:
            file.close()
            if self._path.stat().st_size == 0:
                self._path.unlink()
