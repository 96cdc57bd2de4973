"""The end of a process, also of one that leaves without `atexit`."""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Callable

_LAST = -1_000_000
"""The priority of our finalizer: those of the job come first."""


def call_at_end(finish: Callable[[], None]) -> None:
    """Call a function when this process ends; it may be called twice.

    A child that multiprocessing forks leaves by `os._exit`, before `atexit`: it calls its own
    finalizers first, which are those of the lowest priority last.
    """
    atexit.register(finish)
    if multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=_LAST)
