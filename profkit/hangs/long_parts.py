"""Decide if the ranks that hold up a job are in a part that may take long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profkit.hangs.activity import WAITS_FOR_RANKS, Activity, Doing
from profkit.hangs.evidence import Evidence

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
