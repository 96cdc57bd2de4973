"""Keep profkit's own imports from starting garbage collections in the job.

Importing modules makes thousands of objects that live to the end. Each 700 of them start a
collection. Some are full collections, which stop all threads of a process with torch for 0.2 s.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

PAUSED = 1_000_003
"""The threshold that pauses collections; a number that nobody else would choose."""


@dataclass(eq=False)
class _Pause:
    """Raises the threshold while at least one thread is inside.

    Undoing a `gc.disable` would also undo the job's own. The threshold is restored unless the job
    has set another one in the meantime.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _inside: int = 0
    _before: tuple[int, int, int] = field(default_factory=gc.get_threshold)

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
    """Start no garbage collection in the block, or because of its allocations."""
    _PAUSE.enter()
    try:
        yield
    finally:
        _PAUSE.leave()
