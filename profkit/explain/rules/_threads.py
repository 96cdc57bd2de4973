"""The Python threads of a rank besides its main one."""

from __future__ import annotations

from profkit.explain.evidence_counters import Load

MIN_PYTHON_CORES = 0.2
"""Python threads can be in the loop's way if they use at least this many cores more."""

MIN_SHARE_OF_OWN = 0.5
"""They are what was added if they use at least this share of what the ranks use more."""


def uses_python_threads(before: Load, after: Load) -> bool:
    """Return true if Python threads take most of the processor time that was added.

    They hold the interpreter's lock, which is in the way of the loop sooner than their core.
    """
    if before.python_threads is None or after.python_threads is None:
        return False
    added = after.python_threads - before.python_threads
    own = (after.own or 0.0) - (before.own or 0.0)
    return added >= max(MIN_PYTHON_CORES, MIN_SHARE_OF_OWN * own)
