"""Tells a standstill that lasts from one that may be over at the next look."""

from __future__ import annotations

from profkit.hangs.classes import NEVER_LONG, HangClass, Level
from profkit.hangs.long_parts import LongPart
from profkit.hangs.status import ENDED
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
        self.long_parts: dict[int, LongPart] = {}
        """By rank: the last part of it that is known to take long."""

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
        has_lasted &= now >= self._due_ns(verdict)
        return has_lasted and verdict.was_seen_since(self._seen[2])

    def note_long_parts(self, verdict: Verdict, now: int, wall: int) -> bool:
        """Note who is in a part that is known to take long; return true if that is worth writing.

        What a rank does after such a part has the whole limit from the part's end on, whatever the
        other ranks did meanwhile.
        """
        has_changed = False
        are_in_one = verdict.in_long_part
        for rank, status in verdict.evidence.ranks.items():
            part = self.long_parts.get(rank)
            if rank in are_in_one:
                self.long_parts[rank] = LongPart(status.steps, wall, now)
                has_changed = True
            elif part is not None and not part.is_over:
                self.long_parts[rank] = LongPart(part.steps, wall, now, is_over=True)
                has_changed = True
        return has_changed

    def _needed_ns(self, kind: str) -> int:
        return max(self.usual_ns, ENDS_APART_NS) if kind == ENDED else self.usual_ns

    def _due_ns(self, verdict: Verdict) -> int:
        """Return when what the ranks did after a part that takes long has had the limit."""
        due_ns = 0
        if verdict.kind in NEVER_LONG:
            return due_ns
        for rank in verdict.ranks:
            part, status = self.long_parts.get(rank), verdict.evidence.ranks.get(rank)
            if part is not None and status is not None and part.is_before(status):
                due_ns = max(due_ns, part.now_ns + max(self._limit_ns, status.limit_ns))
        return due_ns


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
