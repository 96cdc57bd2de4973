"""What the product says wrongly of simulated jobs today, each with its reason. The list shrinks."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """Checks that fail for some scenarios, by patterns of their names, and why."""

    reason: str
    checks: Sequence[str]
    scenarios: Sequence[str]
    but: Sequence[str] = ()
    """Patterns of scenarios that are right."""

    def holds(self, check: str, scenario: str) -> bool:
        if check not in self.checks or any(fnmatch.fnmatch(scenario, name) for name in self.but):
            return False
        return any(fnmatch.fnmatch(scenario, name) for name in self.scenarios)


_WITHOUT_DEVICE_TIMES = (
    "no_idle_stream",
    "event_can_never_be_made",
    "query_fails_from_the_start",
    "ranks_without_anchors",
    "paddle_2.6*",
)

KNOWN: Sequence[Known] = (
    Known(
        "a copy on a stream of its own counts as if the computation waited for it",
        ("report", "overview", "live", "ranks", "ledger"),
        ("copy_overlapped",),
    ),
    Known(
        "with one hardware queue, the mark behind each bucket holds up the computation",
        ("job", "report", "overview", "live", "ranks", "ledger", "scaling", "exchange"),
        ("one_rank_with_one_queue",),
    ),
    Known(
        "Paddle's buckets begin when the host launches them: waiting is not told from transfer",
        ("exchange", "scaling"),
        ("paddle_late_in_forward",),
    ),
)


def find_reason(check: str, scenario: str) -> str:
    """Return why this check of a scenario is known to fail, or nothing."""
    for known in KNOWN:
        if known.holds(check, scenario):
            return known.reason
    return ""
