"""What the product says wrongly of simulated jobs today, each with its reason. The list shrinks."""

from __future__ import annotations

import fnmatch

KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "timeline",
        "*|!launch_bound|!fewer_launches|!loss_never|!pool_exhausted|!one_queue|!no_idle_stream"
        "|!event_*|!query_*|!elapsed_*|!*anchors|!one_rank_with_one_queue|!paddle_2.6*",
        "the timeline's row of phases shows the host's launches, not the device's time",
    ),
    (
        "report|overview|live|ranks|ledger",
        "copy_overlapped",
        "a copy on a stream of its own counts as if the computation waited for it",
    ),
    (
        "job",
        "event_can_never_be_made|query_fails_from_the_start",
        "an anchor that raises keeps all rows from being written",
    ),
    (
        "job|ledger|scaling",
        "one_rank_with_one_queue",
        "with one hardware queue, the mark behind each bucket holds up the computation",
    ),
    (
        "exchange|scaling",
        "paddle_late_in_forward",
        "Paddle's buckets begin when the host launches them, so waiting is not told from transfer",
    ),
)
"""Patterns of checks and of scenarios, with `|` between several and `!` before exceptions; why."""


def find_reason(check: str, scenario: str) -> str:
    """Return why this check of a scenario is known to fail, or nothing."""
    for checks, scenarios, reason in KNOWN:
        if matches(check, checks) and matches(scenario, scenarios):
            return reason
    return ""


def matches(name: str, patterns: str) -> bool:
    """Return true if a name fits a pattern, and no exception."""
    fits = False
    for pattern in patterns.split("|"):
        if pattern.startswith("!"):
            if fnmatch.fnmatch(name, pattern[1:]):
                return False
        elif fnmatch.fnmatch(name, pattern):
            fits = True
    return fits
