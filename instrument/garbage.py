"""Keep profkit's own imports from starting garbage collections in the job.

Importing modules makes thousands of objects that live to the end. Each 700 of them start a collection, and
now and then a full one, which stops all threads of a process with torch for 0.2 s.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

PAUSED = 1_000_003
"""The threshold that pauses collections. It is a number that nobody else would choose."""


class _Pause:
    """Raises the threshold while at least one thread is inside.

    `gc.disable` would undo the job's own `gc.disable` when it is taken back; the threshold is the job's
    again unless the job has set another one meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = gc.get_threshold()

    def enter(self) -> None:
        with self._lock:
            self._inside += 1
            threshold = gc.get_threshold()
            if threshold[0] not in {0, PAUSED}:  # 0: the job has switched collections off
                self._before = threshold
                gc.set_threshold(PAUSED, *threshold[1:])

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            self._restore()

    def check(self) -> None:
        """Restore the threshold also if the job has saved ours and set it again."""
        if gc.get_threshold()[0] == PAUSED:
            with self._lock:
                self._restore()

    def _restore(self) -> None:
        if not self._inside and gc.get_threshold()[0] == PAUSED:
            gc.set_threshold(*self._before)


_PAUSE = _Pause()

check_collection = _PAUSE.check


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Start no garbage collection in the block, nor for what it has allocated."""
    _PAUSE.enter()
    try:
        yield
    finally:
        _PAUSE.leave()
