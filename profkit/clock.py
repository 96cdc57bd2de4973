"""The host clock, and the anchors that tie it to other clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

Clock: TypeAlias = Callable[[], int]

now_ns: Clock = time.perf_counter_ns
"""The clock of every `_ns` column: monotonic nanoseconds."""

wall_ns: Clock = time.time_ns
"""The time of day, which other hosts share: nanoseconds since 1970."""

ANCHOR_INTERVAL_NS = 10_000_000_000
"""Clocks of two hosts drift apart by some microseconds in this time."""


class Anchor(NamedTuple):
    """One instant on two clocks, with the width of the window in which it was read."""

    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int


def read_anchor(monotonic: Clock = now_ns, realtime: Clock = wall_ns, *, tries: int = 5) -> Anchor:
    """Read both clocks a few times and return the tightest reading.

    The realtime clock is read between two monotonic readings; the window between them bounds the
    error, and a thread switch inside it shows as a wide window that a better try replaces.
    """
    readings = []
    for _ in range(tries):
        before = monotonic()
        real = realtime()
        after = monotonic()
        readings.append(Anchor((before + after) // 2, real, after - before))
    return min(readings, key=lambda anchor: anchor.uncertainty_ns)
