"""The gate that every imported event passes: times that cannot be are dropped or repaired, and counted.

One kernel with a duration of 236 years outweighs all others, and profilers do write such. What is
done is told as a flag of the run, because figures that come from a bad file must be read as such.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from profkit.vocab import BAD_TIMES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MISSING = -(2**63)
WEEK_NS = 7 * 86_400 * 10**9
LATEST_NS = 9 * 10**18
"""Sums of later times would not fit."""
LONGEST_WORK_NS = 3_600 * 10**9
"""A kernel that waits for another rank may run for long, but its watchdog ends it before an hour."""
OVERLAP_NS = 20_000
"""Kernels of one stream may overlap where one is launched by another; up to 12 us was seen in sound traces."""
CONCURRENT_SHARE = 0.05
"""Where more of a file's work overlaps than this, it ran so (graphs do), and nothing is repaired."""

NO_TIME = "events without a time"
ZERO = "events with a timestamp of zero"
BACKWARDS = "events that end before they start"
WEEK = "events longer than a week"
FAR = "events more than a week from the others"
HOUR = "device events longer than an hour"
OVERLAP = "device events that ended after the next one on their stream began"
CONCURRENT = "device events overlap on one stream; they were left as they are"


@dataclass
class Gate:
    """Counts what was done to the events, by reason."""

    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)

    @property
    def flags(self) -> list[str]:
        """What a reader of the run must know."""
        dropped, repaired = BAD_TIMES
        told = [f"{dropped}{count:,} {reason}" for reason, count in sorted(self.dropped.items())]
        told += [f"{repaired}{count:,} {reason}" for reason, count in sorted(self.repaired.items())]
        return told + [f"{count:,} {what}" for what, count in sorted(self.noticed.items())]

    def keep(self, start: Ints, duration: Ints, on_device: Bools) -> Bools:
        """Which events have times that can be; every other is counted under the first reason that holds."""
        good = np.ones(len(start), dtype=bool)
        if not len(start):
            return good
        given = start != MISSING
        usual = int(np.median(start[given])) if given.any() else 0
        reasons = {
            NO_TIME: ~given | (duration == MISSING),
            ZERO: (start == 0) & ((duration == 0) | (abs(usual) > LONGEST_WORK_NS)),
            BACKWARDS: duration < 0,
            WEEK: duration > WEEK_NS,
            FAR: (start < max(usual - WEEK_NS, -LATEST_NS))
            | (start > min(usual + WEEK_NS, LATEST_NS)),
            HOUR: on_device & (duration > LONGEST_WORK_NS),
        }
        for reason, holds in reasons.items():
            if count := int((good & holds).sum()):
                self.dropped[reason] += count
            good &= ~holds
        return good

    def clip_overlaps(self, lane: Ints, start: Ints, end: Ints) -> Ints:
        """The ends, where an event that outlasts its stream's next one by too much ends where that begins."""
        order = np.lexsort((end, start, lane))
        before, after = order[:-1], order[1:]
        over = (lane[before] == lane[after]) & (end[before] > start[after] + OVERLAP_NS)
        count = int(over.sum())
        if not count:
            return end
        if count > max(8, CONCURRENT_SHARE * len(start)):
            self.noticed[CONCURRENT] += count
            return end
        self.repaired[OVERLAP] += count
        repaired: Ints = end.copy()
        repaired[before[over]] = start[after[over]]
        return repaired
