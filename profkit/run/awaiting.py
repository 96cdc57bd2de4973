"""Waits for a thread while it makes progress, and not for a disk that does not answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from profkit.errors import ProfkitError
from profkit.text import safe_text

T = TypeVar("T")

DISK_S = 2.0
"""Making and closing a run's folder waits this long for a disk that does not answer."""

LONGEST_S = 60.0
"""Nothing is waited for any longer, however much it computes."""

LOOKS = 10
"""The time is split into so many waits, so that one pause of the machine cannot use all of it."""


def await_thread(thread: threading.Thread, idle_s: float, longest_s: float = LONGEST_S) -> bool:
    """Wait for a thread until it ends, or has used no processor for a while.

    Return true if it has ended. A thread that imports on a busy machine gets on slowly, while one
    that waits for a file system which does not answer never will.
    """
    deadline = time.monotonic() + longest_s
    used_s, idle_looks = -1.0, 0
    while thread.is_alive() and time.monotonic() < deadline:
        before_s, used_s = used_s, _cpu_s(thread)
        idle_looks = idle_looks + 1 if used_s <= before_s else 0
        if idle_looks == LOOKS:
            break
        thread.join(max(0.0, min(idle_s / LOOKS, deadline - time.monotonic())))
    return not thread.is_alive()


def _cpu_s(thread: threading.Thread) -> float:
    from profkit.hangs.processes import look_at

    return look_at(os.getpid(), thread.native_id or 0).cpu_s


class DiskWork(Generic[T]):
    """Work on the files of a run, by a thread that is left alone if no disk answers.

    Python starts no thread at its end, so this one is started here and begins with `finish`. What
    it has made after it was left alone is handed to `undo`.
    """

    def __init__(
        self, work: Callable[[], T], undo: Callable[[T], object] = lambda made: None
    ) -> None:
        self._work, self._undo = work, undo
        self._begun, self._lock = threading.Event(), threading.Lock()
        self._made: list[T] = []
        self._error: Exception | None = None
        self._is_left_alone = False
        self._thread = threading.Thread(target=self._run, name="profkit-disk", daemon=True)
        self._thread.start()

    def finish(self, place: Path, idle_s: float = DISK_S) -> T:
        """Return what the work returns. If no disk answers, raise an error that names `place`."""
        self._begun.set()
        await_thread(self._thread, idle_s)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._made:
                return self._made[0]
            self._is_left_alone = True
        raise ProfkitError(
            f"{safe_text(str(place))}: the disk does not answer; choose another place with --output"
        )

    def _run(self) -> None:
        self._begun.wait()
        try:
            made = self._work()
        except Exception as error:  # noqa: BLE001  # it is raised where the work is waited for
            self._error = error
            return
        with self._lock:
            self._made.append(made)
            is_late = self._is_left_alone
        if is_late:
            self._undo(made)
