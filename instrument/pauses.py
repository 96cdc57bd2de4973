"""The pauses of slowed threads and worker processes, as busy as the work before them."""

from __future__ import annotations

import functools
import time
import zlib
from typing import Final

from profkit.clock import now_ns
from profkit.instrument.rows import BatchTimes
from profkit.vocab import EXPERIMENT_FACTOR

SLEEP_ERROR_NS = 200_000
"""A sleep may end so much later; the rest of a pause is spent awake."""

MOST_WORKER_PAUSE_NS = 60_000_000_000
"""A worker that waited for its storage for an hour does not pause for another one."""

MORE: Final = EXPERIMENT_FACTOR - 1
"""The pause after a part, as a multiple of it."""

_be_busy = functools.partial(zlib.crc32, bytes(32_768))
"""Works for some microseconds without the interpreter, as a framework does."""


def pause(ns: float, busy_ns: float) -> float:
    """Keep the thread for a time: busy at first, as the part was, and asleep for the rest.

    Returns how much longer that took.
    """
    start = now_ns()
    awake_until, end = start + min(ns, busy_ns), start + ns
    while now_ns() < awake_until:
        _be_busy()
    asleep_ns = end - now_ns() - SLEEP_ERROR_NS
    if asleep_ns > 0:
        time.sleep(asleep_ns / 1e9)
    while now_ns() < end:
        _be_busy()
    return now_ns() - end


def pause_worker(times: BatchTimes) -> None:
    """Keep a thread or process that has made a batch as long as that took."""
    took_ns = times.end_ns - times.start_ns
    pause(min(MORE * took_ns, MOST_WORKER_PAUSE_NS), MORE * (took_ns - times.blocked_ns))
