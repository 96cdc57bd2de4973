"""A job's own timing of its batches: a pause of the machine changes it like profkit's."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

BATCH_SIZE = 4
READ_MS, DECODE_MS, COLLATE_MS = 20.0, 20.0, 15.0
SCHEDSTAT = Path("/proc/thread-self/schedstat")


def work(milliseconds: float) -> None:
    """Keep a processor busy for so long."""
    end = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end:
        pass


class Clocks(NamedTuple):
    """The clocks of this thread at one moment."""

    wall_ns: int
    processor_ns: int
    waited_for_core_ns: int


def read_clocks() -> Clocks:
    waited = 0
    with contextlib.suppress(OSError):
        waited = int(SCHEDSTAT.read_text().split()[1])
    return Clocks(time.perf_counter_ns(), time.thread_time_ns(), waited)


class OwnBatch:
    """Makes one batch after another slow, by planted times, and tells what they came to."""

    def __init__(self) -> None:
        self._began = self._collating = read_clocks()

    def read(self, index: int, *, read_ms: float = READ_MS, decode_ms: float = DECODE_MS) -> None:
        """The first sample of a batch blocks for `read_ms`, then computes for `decode_ms`."""
        if index % BATCH_SIZE == 0:
            self._began = read_clocks()
            time.sleep(read_ms / 1e3)
            work(decode_ms)

    def collate(self) -> None:
        """Blocks, too."""
        self._collating = read_clocks()
        time.sleep(COLLATE_MS / 1e3)

    def figures(self) -> list[float]:
        """The times of reading, decoding and collating until now, in ms, and the time of day."""
        wall, processor, waited = (
            late - early for early, late in zip(self._began, self._collating, strict=True)
        )
        now = time.perf_counter_ns()
        return [
            1e-6 * (wall - processor - waited),
            1e-6 * processor,
            1e-6 * (now - self._collating.wall_ns),
            float(now),
        ]
