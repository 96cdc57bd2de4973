"""Decide if the ranks that hold up a job are in a part that may take long, or were before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from profkit.hangs.activity import WAITS_FOR_RANKS, Activity, Doing
from profkit.hangs.evidence import Evidence, read_hosts
from profkit.hangs.status import FOLDER, LARGEST, Status

LONG_FACTOR = 10
"""A part that is known to take long may show no life for so many limits before it is a hang."""

LONG = frozenset({Doing.COMPILE, Doing.CHECKPOINT})


def may_take_long(
    culprits: Iterable[int],
    evidence: Evidence,
    activities: Mapping[int, Activity],
    *,
    is_waited_for: bool,
) -> bool:
    """Return true if each of these ranks may need the time; others may wait for them."""
    for rank in culprits:
        status = evidence.ranks.get(rank)
        if status is None or (status.is_idle and not is_waited_for):
            continue  # it has not imported its framework yet, or runs on another host
        activity = activities[rank]
        imports = any(frame.file.startswith("<frozen importlib") for frame in status.stack)
        is_long = activity.evaluates or activity.doing in LONG or status.steps == 0 or imports
        is_long |= status.loaders_over or not status.stack  # without one, it may import or compile
        idle_s = evidence.idle_s(rank)
        is_computing = not is_waited_for and idle_s < status.limit_ns / 1e9
        if activity.doing in WAITS_FOR_RANKS and status.steps > 0:
            return False
        if not is_computing and not is_long:
            return False
        if idle_s > LONG_FACTOR * status.limit_ns / 1e9:
            return False
    return True


def show_life(ranks: Iterable[int], evidence: Evidence) -> bool:
    """Return true if one of these ranks went on within the limit, from message to message."""
    for rank in ranks:
        is_heard = rank in evidence.ranks and rank not in evidence.unheard
        if is_heard and evidence.idle_s(rank) < evidence.ranks[rank].limit_ns / 1e9:
            return True
    return False


def in_long_part(rank: int, evidence: Evidence, activity: Activity) -> bool:
    """Return true if a rank is in a part that is known to take long, and shows life."""
    is_long = activity.evaluates or activity.doing in LONG
    return is_long and evidence.idle_s(rank) <= LONG_FACTOR * evidence.ranks[rank].limit_ns / 1e9


@dataclass(frozen=True)
class LongPart:
    """A part known to take long, in which `profkit run` saw a rank, or which the rank waited for."""

    steps: int
    """The steps of the rank then. Times differ by some 100 ns from status to status."""
    seen_ns: int
    """When the part was seen last, or first seen to be over, on the clock of the day."""
    now_ns: int = 0
    """The same on the monotonic clock of the process that saw it."""
    is_over: bool = False

    def is_before(self, status: Status | None) -> bool:
        """Return true if this rank has ended no step since."""
        return status is not None and status.steps == self.steps


def after_long_part_s(run: Path, evidence: Evidence, ranks: Iterable[int]) -> float | None:
    """Return how long ago one of these ranks was in a part that may take long, if one was."""
    seen_ns = []
    for _, _, content in read_hosts(run / FOLDER):
        for rank in ranks:
            try:
                part = LongPart(**content["long_parts"][str(rank)])
                is_before = part.is_before(evidence.ranks.get(rank))
                if is_before and 0 < part.seen_ns < LARGEST:
                    seen_ns.append(part.seen_ns)
            except (KeyError, TypeError):
                continue  # the rank was in none, or the file is damaged
    return max(0, evidence.newest_ns - max(seen_ns)) / 1e9 if seen_ns else None
