"""Have the eye read the stack when a signal such as SIGSEGV or SIGABRT ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from profkit.hangs.processes import caught_signals

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a runtime inside the process may catch because it recovers from them."""

_crash: Any = None
with contextlib.suppress(ImportError):  # no compiler: a crash has no line
    from profkit.run.lookout import _crash


def catch_crashes(path: Path) -> bool:
    """Have a crash noted in this file, unless something else decides what a crash does.

    Frameworks set handlers of their own while they are imported, and ours must come after.
    """
    if _crash is None or recovers_from_crashes():
        return False
    _crash.catch(os.fsencode(path))
    return True


def release_crashes() -> None:
    if _crash is not None:
        _crash.release()


def recovers_from_crashes() -> bool:
    """Return true if native code in this process catches a signal at which others crash.

    A runtime such as Java's repairs what it caught, and could not after our handler. Paddle only
    prints a stack and ends the process.
    """
    if "paddle" in sys.modules:
        return False
    caught = caught_signals(os.getpid())
    return caught is None or bool(CRASHES & caught)
