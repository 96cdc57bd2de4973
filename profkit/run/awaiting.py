"""Waits for a thread for as long as it gets on."""

from __future__ import annotations

import os
import threading
import time


def await_thread(thread: threading.Thread, idle_s: float, longest_s: float) -> bool:
    """Wait for a thread until it ends, or has used no processor for a while.

    Return true if it has ended. A thread that imports on a busy machine gets on slowly, while one
    that waits for a file system which does not answer never will.
    """
    deadline = time.monotonic() + longest_s
    used_s = -1.0
    while thread.is_alive() and time.monotonic() < deadline:
        before_s, used_s = used_s, _cpu_s(thread)
        if used_s <= before_s:
            break
        thread.join(min(idle_s, deadline - time.monotonic()))
    return not thread.is_alive()


def _cpu_s(thread: threading.Thread) -> float:
    from profkit.hangs.processes import look_at

    return look_at(os.getpid(), thread.native_id or 0).cpu_s
