"""Record short steps as fast as possible for a long time, and check memory and files.

    python benchmarks/soak.py [--minutes 10]

Prints the growth of memory per hour (a line fitted after the first minute, with its 95 %
interval), the open descriptors at the start and the end, threads, bytes per row, and if the run
verifies. Exits 1 if descriptors or threads grew, rows are missing, or memory certainly grows by
more than 1 MB per hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profkit.clock import read_anchor
from profkit.frame.parts import count_rank_steps
from profkit.instrument.recorder import Recorder
from profkit.scribe.thinned import full_bytes, new_thinner
from profkit.testing import OpenStep
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, verify
from profkit.trace.integrity import this_process
from profkit.vocab import Integrity, RunState

MOST_MB_PER_H = 1.0
SETTLED_S = 60.0
"""After this long pools and caches have their size."""

TELLING_S = 180.0
"""For how long memory must then be watched to tell growth from noise."""

READINGS = 200
STEPS_BETWEEN_LOOKS = 200
PAUSE_S = 0.0005
"""A step's own work: short, so that many steps are recorded."""


@dataclass(frozen=True)
class Soaked:
    """The state after all steps."""

    steps: int
    seconds: float
    slope_mb_per_h: float | None
    """Nothing where the time was too short to tell."""
    error_mb_per_h: float
    descriptors: tuple[int, int]
    threads: tuple[int, int]
    bytes_a_step: float
    whole: bool

    @property
    def grows(self) -> bool:
        """Return true if memory certainly grows too much, or anything was left open."""
        surely = (
            self.slope_mb_per_h is not None
            and self.slope_mb_per_h - self.error_mb_per_h > MOST_MB_PER_H
        )
        return (
            surely or self.descriptors[1] > self.descriptors[0] or self.threads[1] > self.threads[0]
        )


def soak(folder: Path, seconds: float) -> Soaked:
    """Record for this time. Readings are taken in the loop, between steps."""
    threads = threading.active_count()
    descriptors = _descriptors()
    RunManifest(workload="soak", owner=this_process()).write(folder)
    manifest = RankManifest(0, "here", os.getpid(), "cpu", read_anchor())
    writer = RankWriter(folder, manifest, thinner=new_thinner, full_bytes=full_bytes())
    recorder = Recorder(writer)
    readings: list[tuple[float, float]] = []
    steps, begin = 0, time.perf_counter()
    recorder.begin()
    while (now := time.perf_counter() - begin) < seconds:
        if now >= len(readings) * seconds / READINGS:
            readings.append((now, resident_mb()))
        for _ in range(STEPS_BETWEEN_LOOKS):
            _train_one_step(recorder)
        steps += STEPS_BETWEEN_LOOKS
    recorder.stop()
    writer.close()
    RunManifest(workload="soak", state=RunState.COMPLETE).write(folder)
    settled = [reading for reading in readings if reading[0] >= SETTLED_S]
    slope, error = None, 0.0
    if seconds >= SETTLED_S + TELLING_S:
        slope, error = (3600 * each for each in fit_growth(settled))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    is_complete = verify(folder).state is Integrity.COMPLETE
    trace = Trace.open(folder)
    whole = is_complete and count_rank_steps(trace.steps, trace.sums) == steps
    return Soaked(
        steps,
        seconds,
        slope,
        error,
        (descriptors, _descriptors()),
        (threads, threading.active_count()),
        size / steps,
        whole,
    )


def _train_one_step(recorder: Recorder) -> None:
    with OpenStep(recorder, 32):
        for phase in ("data", "forward", "backward", "optimizer"):
            with recorder.phase(phase):
                pass
        time.sleep(PAUSE_S)


def fit_growth(readings: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of a line through readings, and twice its standard error."""
    x, y = np.array(readings).T
    slope, offset = np.polyfit(x, y, 1)
    rest = y - slope * x - offset
    error = np.sqrt(rest.var(ddof=2) / ((x - x.mean()) ** 2).sum())
    return float(slope), float(2 * error)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), arguments.minutes * 60)
    growth = (
        "too short to tell"
        if found.slope_mb_per_h is None
        else f"{found.slope_mb_per_h:+.2f} MB/h (± {found.error_mb_per_h:.2f})"
    )
    print(
        f"{found.steps:,} steps in {found.seconds / 60:.1f} min: memory {growth}, descriptors "
        f"{found.descriptors[0]} and {found.descriptors[1]}, threads {found.threads[0]} and "
        f"{found.threads[1]}, {found.bytes_a_step:.0f} bytes a step, "
        f"{'whole' if found.whole else 'NOT WHOLE'}"
    )
    return 1 if found.grows or not found.whole else 0


if __name__ == "__main__":
    sys.exit(main())
