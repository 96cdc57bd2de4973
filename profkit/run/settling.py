"""Tells a standstill that lasts from one that may be over at the next look."""

from __future__ import annotations

from profkit.hangs.classes import NEVER_LONG, HangClass, Level
from profkit.hangs.status import ENDED, RUNNING, Status
from profkit.hangs.verdict import Verdict

SETTLE_PART = 0.25
LONGEST_SETTLE_S = 10.0
"""An alarm is raised when its reason has been seen for a part of the limit, or for so long."""

ENDS_APART_NS = 5_000_000_000
"""The ranks of a job that is over may end this far apart; until then, none of them is missing."""


class Settling:
    """Follows the verdicts about one standstill.

    When an evaluation on one rank ends, all ranks are in a barrier for a moment, after the job has
    stood for long. Then a batch may take long before a step ends: it has the whole limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_ns = int(limit_s * 1e9)
        self.usual_ns = int(min(LONGEST_SETTLE_S, limit_s * SETTLE_PART) * 1e9)
        self._seen: tuple[str, int, int] | None = None
        """What kind of standstill was seen, and since when it has not changed."""
        self._long_after: dict[int, int] = {}
        """The steps of each rank when the job was last in a part that takes long.

        Times of a status differ by some 100 ns from look to look, as two clocks make them.
        """

    def start_over(self) -> None:
        """Forget what was seen, because the job moves."""
        self._seen = None

    def is_over(self, verdict: Verdict, now: int, wall: int) -> bool:
        """Return true if a verdict may be said; an alarm has to be seen for some time."""
        if verdict.is_long_part:
            self._long_after = {status.rank: status.steps for status in _running(verdict)}
        kind = _kind_of(verdict)
        if self._seen is None or kind != self._seen[0]:
            self._seen = (kind, now, wall)
        if verdict.level is Level.NOTICE:
            return True
        has_lasted = now - self._seen[1] >= self._needed_ns(verdict, kind)
        return has_lasted and verdict.was_seen_since(self._seen[2])

    def _needed_ns(self, verdict: Verdict, kind: str) -> int:
        if kind == ENDED:
            return max(self.usual_ns, ENDS_APART_NS)
        if self._was_long(verdict) and verdict.kind not in NEVER_LONG:
            limits = (status.limit_ns for status in verdict.evidence.ranks.values())
            return max(self._limit_ns, *limits)
        return self.usual_ns

    def _was_long(self, verdict: Verdict) -> bool:
        """Return true if the rank that is furthest behind has ended no step since a long part."""
        behind = min(_running(verdict), key=lambda status: status.moved_ns, default=None)
        return behind is not None and self._long_after.get(behind.rank) == behind.steps


def _kind_of(verdict: Verdict) -> str:
    """Return what must not change from look to look before an alarm is raised."""
    ended = {rank for rank, each in verdict.evidence.ranks.items() if each.state == ENDED}
    if verdict.level is Level.NOTICE:
        return Level.NOTICE.value if verdict.kind is not HangClass.OWN_CODE else ""
    if verdict.kind in {HangClass.NONE_LEFT, HangClass.MISMATCH}:
        # Ranks that go from call to call are seen in different ones at each look.
        opened = verdict.waits.open.items()
        places = sorted((rank, call.group, call.sequence) for rank, call in opened)
        return f"{verdict.kind.value} {places}"
    if verdict.ranks and ended.issuperset(verdict.ranks):
        return ENDED
    return ""  # what a slow rank does may change from look to look


def _running(verdict: Verdict) -> list[Status]:
    """Return the statuses of the ranks that have not ended."""
    ranks = verdict.evidence.ranks.values()
    return [status for status in ranks if status.state == RUNNING]
