"""Drops or repairs events with impossible times, and counts them.

Profilers do write such events, and one kernel with a duration of 236 years outweighs all others.
Each reason becomes a flag of the run, because its figures come from a damaged file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from profkit.importers.reading.numbers import MISSING, Bools, Ints
from profkit.trace.flag import Flag, FlagKind

WEEK_NS = 7 * 86_400 * 10**9
LATEST_NS = 9 * 10**18
"""Sums of later times would not fit into 64 bits."""
LONGEST_WORK_NS = 3_600 * 10**9
"""A kernel may wait long for another rank, but a watchdog ends it before an hour."""
OVERLAP_NS = 20_000
"""Kernels that launch kernels overlap on a stream, by up to 12 us in sound traces."""
CONCURRENT_SHARE = 0.05
"""If a larger share of a file's work overlaps, it ran so, as in graphs: nothing is repaired."""
MIN_CONCURRENT = 8

NO_TIME = "events without a time"
ZERO = "events with a timestamp of zero"
BACKWARDS = "events that end before they start"
TOO_LONG = "events longer than a week"
TOO_FAR = "events more than a week from the others"
TOO_LONG_WORK = "device events longer than an hour"
OVERLAP = "device events that ended after the next one on their stream began"
CONCURRENT = "device events overlap on one stream; they were left as they are"


@dataclass
class TimeGate:
    """Lets events with possible times pass, and counts the others by reason."""

    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)

    @property
    def flags(self) -> list[Flag]:
        """Flags for the run."""
        flags = []
        parts = (("dropped ", self.dropped), ("repaired ", self.repaired), ("", self.noticed))
        for done, counts in parts:
            kind = FlagKind.BAD_TIMES if done else FlagKind.DOUBT
            for reason, count in sorted(counts.items()):
                flags.append(Flag(f"{done}{count:,} {reason}", kind))
        return flags

    def keep(self, start: Ints, duration: Ints, on_device: Bools) -> Bools:
        """Return which events have possible times; count the others under their first reason."""
        good = np.ones(len(start), dtype=bool)
        if not len(start):
            return good
        given = start != MISSING
        usual = 0
        if given.any():
            usual = int(np.median(start[given]))
        earliest, latest = max(usual - WEEK_NS, -LATEST_NS), min(usual + WEEK_NS, LATEST_NS)
        reasons = {
            NO_TIME: ~given | (duration == MISSING),
            ZERO: (start == 0) & ((duration == 0) | (abs(usual) > LONGEST_WORK_NS)),
            BACKWARDS: duration < 0,
            TOO_LONG: duration > WEEK_NS,
            TOO_FAR: (start < earliest) | (start > latest),
            TOO_LONG_WORK: on_device & (duration > LONGEST_WORK_NS),
        }
        for reason, holds in reasons.items():
            if count := int((good & holds).sum()):
                self.dropped[reason] += count
            good &= ~holds
        return good

    def clip_overlaps(self, lane: Ints, start: Ints, end: Ints) -> Ints:
        """Return the ends; an event that overlaps its stream's next one ends where that begins."""
        order = np.lexsort((end, start, lane))
        before, after = order[:-1], order[1:]
        over = (lane[before] == lane[after]) & (end[before] > start[after] + OVERLAP_NS)
        count = int(over.sum())
        if not count:
            return end
        if count > max(MIN_CONCURRENT, CONCURRENT_SHARE * len(start)):
            self.noticed[CONCURRENT] += count
            return end
        self.repaired[OVERLAP] += count
        repaired: Ints = end.copy()
        repaired[before[over]] = start[after[over]]
        return repaired
