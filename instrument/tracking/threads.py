"""Chooses the thread that trains."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

_this_thread = threading.get_ident


@dataclass(slots=True, eq=False)
class ThreadFilter:
    """Follows one thread: the first that trains.

    Until one trains, this is the main thread, or the first thread that reports anything.
    """

    on_change: Callable[[], None]
    """Called when a thread is followed that was not followed before."""
    thread: int | None = None
    decided: bool = False
    """True once the followed thread has trained; then no other is followed any more."""

    def accepts(self) -> bool:
        """Return true if the calling thread is followed, or becomes the followed one."""
        thread = _this_thread()
        if thread == self.thread:
            return True
        if self.decided:
            return False
        if self.thread is not None and thread != threading.main_thread().ident:
            return False
        self.thread = thread
        self.on_change()
        return True

    def decide(self) -> bool:
        """Follow the calling thread as the training one; false if one was chosen before."""
        if self.decided:
            return False
        thread = _this_thread()
        if thread != self.thread:
            self.thread = thread
            self.on_change()
        self.decided = True
        return True
