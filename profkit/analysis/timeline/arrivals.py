"""Late arrivals: the last rank to come to each collective, and how long the others waited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.estimate import Ints
from profkit.analysis.exchange import match_collectives
from profkit.analysis.timeline.levels import nearest


class LateArrival(NamedTuple):
    """A collective that ranks waited for: the last to come, when, and the longest wait."""

    time_ns: int
    rank: int
    waited_ns: int
    step: int


class Arrivals(NamedTuple):
    """The late arrivals of all collectives, in order of time."""

    time_ns: Ints
    rank: Ints
    waited_ns: Ints
    step: Ints

    def find(self, from_ns: int, longer_ns: int, *, back: bool) -> LateArrival | None:
        """Return the next one after a moment with a longer wait, or the last one before it."""
        place = nearest(self.time_ns, self.waited_ns > longer_ns, from_ns, back=back)
        if place is None:
            return None
        return LateArrival(*(int(column[place]) for column in self))


def find_arrivals(collectives: pa.Table, steps: Ints, shifts: Mapping[int, int]) -> Arrivals:
    """Return when the last rank came to each collective that some rank waited in.

    Only collectives that all their ranks recorded count. Durations tell who came last, so the
    ranks' clocks need not agree; `shifts` bring the times to the timeline's axis.
    """
    found = match_collectives(collectives, steps)
    longest = np.zeros(found.count, dtype=np.int64)
    np.maximum.at(longest, found.group, found.end - found.start - found.transfer)
    is_last = found.matched & (found.rank == found.late_rank)
    came = np.flatnonzero(is_last & (longest[found.group] > 0))
    shift = np.zeros(max(shifts, default=0) + 1, dtype=np.int64)
    for rank, ns in shifts.items():
        shift[rank] = ns
    time = found.start[came] + shift[found.rank[came]]
    order = np.argsort(time, kind="stable")
    came = came[order]
    waited_ns = longest[found.group[came]]
    return Arrivals(time[order], found.rank[came], waited_ns, found.step[came])
