"""Tells a standstill that lasts from one that may be over at the next look."""

from __future__ import annotations

from profkit.hangs.classes import NEVER_LONG, HangClass, Level
from profkit.hangs.long_parts import Excuse, without_ahead
from profkit.hangs.status import ENDED, Status
from profkit.hangs.verdict import Verdict

SETTLE_PART = 0.25
LONGEST_SETTLE_S = 10.0
"""An alarm is raised when its reason has been seen for a part of the limit, or for so long."""

HEARD_WITHIN_S = 3.0
"""A rank that writes nothing for longer, or for half of the limit, has not just been delayed."""

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
        self.excuses: dict[int, Excuse] = {}
        """By rank: its last one."""

    def start_over(self) -> None:
        """Forget what was seen, because the job moves."""
        self._seen = None

    def is_over(self, verdict: Verdict, now: int, wall: int) -> bool:
        """Return true if a verdict may be said; an alarm has to be seen for some time."""
        kind = _kind_of(verdict)
        if self._seen is None or kind != self._seen[0]:
            self._seen = (kind, now, wall)
        if verdict.level is Level.NOTICE:
            return True
        has_lasted = now - self._seen[1] >= self._needed_ns(kind)
        has_lasted &= self._is_held_up(verdict, now, wall)
        return has_lasted and verdict.was_seen_since(self._seen[2])

    def note_excuses(self, verdict: Verdict, now: int, wall: int) -> bool:
        """Note who has an excuse; return true if one has begun or ended."""
        has_changed = False
        are_excused = verdict.excused
        for rank, status in verdict.evidence.ranks.items():
            excuse = self.excuses.get(rank)
            if rank in are_excused:
                has_changed |= excuse is None or excuse.is_over or excuse.steps != status.steps
                self.excuses[rank] = Excuse(status.steps, wall, now)
            elif excuse is not None and not excuse.is_over:
                self.excuses[rank] = Excuse(excuse.steps, wall, now, is_over=True)
                has_changed = True
        return has_changed

    def _needed_ns(self, kind: str) -> int:
        return max(self.usual_ns, ENDS_APART_NS) if kind == ENDED else self.usual_ns

    def _is_held_up(self, verdict: Verdict, now: int, wall: int) -> bool:
        """Return true if each rank that holds up the job has done so for the limit.

        Others may have waited for it for longer: it evaluated, ended its step, and then had a slow
        batch. Of a rank that is not heard, only the excuse is known.
        """
        if verdict.kind in NEVER_LONG:
            return True
        evidence = verdict.evidence
        for rank in without_ahead(evidence, verdict.ranks, verdict.waiting):
            status, excuse = evidence.ranks[rank], self.excuses.get(rank)
            limit_ns = max(self._limit_ns, status.limit_ns)
            is_heard = rank not in evidence.silent and is_recent(status, wall, limit_ns)
            if is_heard and status.stood_ns < limit_ns:
                return False
            if excuse is None or not excuse.is_since_step(status):
                continue
            if now < excuse.now_ns + limit_ns:
                return False
        return True


def is_recent(status: Status, wall: int, limit_ns: int) -> bool:
    """Return true if the rank wrote its status lately, so that its next words may be delayed."""
    return wall - status.written_ns < max(HEARD_WITHIN_S * 1e9, limit_ns / 2)


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
