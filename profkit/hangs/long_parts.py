"""Decide if the ranks that hold up a job may need the time, and for how long they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
        # Without a stack, it may import or compile.
        is_long = is_known_long(status, activity) or not status.stack
        idle_s = evidence.idle_s(rank)
        is_computing = not is_waited_for and idle_s < status.limit_ns / 1e9
        if activity.doing in WAITS_FOR_RANKS and status.steps > 0:
            return False
        if not is_computing and not is_long:
            return False
        if idle_s > LONG_FACTOR * status.limit_ns / 1e9:
            return False
    return True


def is_known_long(status: Status, activity: Activity) -> bool:
    """Return true if a rank is in a part that is known to take long."""
    imports = any(frame.file.startswith("<frozen importlib") for frame in status.stack)
    is_between = status.steps == 0 or status.loaders_over or imports
    return activity.evaluates or activity.doing in LONG or is_between


def show_life(ranks: Iterable[int], evidence: Evidence) -> bool:
    """Return true if one of these ranks went on within the limit, from message to message."""
    for rank in ranks:
        is_heard = rank in evidence.ranks and rank not in evidence.unheard
        if is_heard and evidence.idle_s(rank) < evidence.ranks[rank].limit_ns / 1e9:
            return True
    return False


def may_be_heard(ranks: Iterable[int], evidence: Evidence) -> bool:
    """Return true if each of these ranks is silent, but not for longer than a long part takes."""
    for rank in ranks:
        status = evidence.ranks[rank]
        silent_s = (evidence.newest_ns - status.written_ns) / 1e9
        if rank not in evidence.unheard or silent_s > LONG_FACTOR * status.limit_ns / 1e9:
            return False
    return True


def in_long_part(rank: int, evidence: Evidence, activity: Activity) -> bool:
    """Return true if a rank is in a part that is known to take long, and shows life."""
    status = evidence.ranks[rank]
    if activity.doing in WAITS_FOR_RANKS and status.steps > 0:
        return False  # it may wait for ever
    shows_life = evidence.idle_s(rank) <= LONG_FACTOR * status.limit_ns / 1e9
    return shows_life and is_known_long(status, activity)


@dataclass(frozen=True)
class Excuse:
    """A rank waited for others, or was in a part that is known to take long."""

    steps: int
    """The steps of the rank then. Times differ by some 100 ns from status to status."""
    seen_ns: int
    """When that was seen last, or first seen to be over, on the clock of the day."""
    now_ns: int = 0
    """The same on the monotonic clock of the process that saw it."""
    is_over: bool = False

    def is_since_step(self, status: Status) -> bool:
        """Return true if this rank has ended no step since."""
        return status.steps == self.steps


def without_ahead(
    evidence: Evidence, culprits: Iterable[int], waiting: Iterable[int]
) -> Iterator[int]:
    """Yield the ranks that do not go on from step to step without those that wait for them."""
    steps = [evidence.ranks[rank].steps for rank in waiting if rank in evidence.ranks]
    most = max(steps) + 1 if steps else None
    for rank in culprits:
        status = evidence.ranks.get(rank)
        if status is not None and (most is None or status.steps <= most):
            yield rank


def held_up_s(
    run: Path, evidence: Evidence, culprits: Iterable[int], waiting: Iterable[int]
) -> float | None:
    """Return for how long these ranks have held up the job; `None` without their files.

    A rank holds it up since its last step, unless it had an excuse after that.
    """
    found = []
    for rank in without_ahead(evidence, culprits, waiting):
        if rank in evidence.silent:
            continue
        status = evidence.ranks[rank]
        since_ns = [status.moved_ns, *_excused_until(run, rank, status)]
        found.append(max(0, evidence.newest_ns - max(since_ns)) / 1e9)
    return min(found, default=None)


def _excused_until(run: Path, rank: int, status: Status) -> Iterator[int]:
    for _, _, content in read_hosts(run / FOLDER):
        try:
            excuse = Excuse(**content["excuses"][str(rank)])
            if excuse.is_since_step(status) and 0 < excuse.seen_ns < LARGEST:
                yield excuse.seen_ns
        except (KeyError, TypeError):
            continue  # the rank had none, or the file is damaged
