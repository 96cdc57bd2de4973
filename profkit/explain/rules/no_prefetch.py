"""Weights are gathered when they are needed, and no longer while others compute."""

from __future__ import annotations

from profkit.explain.policy import POLICY
from profkit.explain.rules._overhead import less_competition
from profkit.explain.rules._sharded import (
    Traffic,
    compared,
    computing_ns,
    is_gather,
    traffic,
)
from profkit.explain.rules.base import Case, Cause, Specific, from_to, grew, in_time
from profkit.text import duration

MIN_HIDDEN_SHARE = 0.2
"""The other run must hide at least this share of its gathers."""

MAX_HIDDEN_RATIO = 0.5
"""Less than this share of the hidden time is left."""

MAX_FLIGHT_RATIO = 1.5
"""Gathers that are under way for more than this many times as long have become slower."""

MAX_SHRUNK_SHARE = 0.5
"""If computing shrank by more than this share of the hidden time lost, less could be hidden."""

_REMEDY = (
    "gather the next module's weights early (set_modules_to_forward_prefetch and "
    "set_modules_to_backward_prefetch in FSDP2, backward_prefetch in FSDP1)"
)


def find(case: Case) -> Cause | None:
    """Compare gathers that are as many and as large: those of one run are hidden."""
    exchange, ledger = compared(case), case.ledger
    if exchange is None:
        return None
    before, after = traffic(case.before, is_gather), traffic(case.after, is_gather)
    if not (_is_alike(before, after) and _hides_less(before, after)):
        return None
    shrunk_ns = case.before.figure(computing_ns) - case.after.figure(computing_ns)
    if shrunk_ns > MAX_SHRUNK_SHARE * (before.hidden_ns - after.hidden_ns):
        return None
    row = exchange.row("all_gather", is_gather)
    if not grew(row, ledger):
        return None
    was, now = in_time(ledger, before, after)
    evidence = (
        f"the same all-gathers were hidden for {duration(was.hidden_ns)} per step, then for "
        f"{duration(now.hidden_ns)}; their exposed time went from {from_to(row, ledger)}"
    )
    cause = Cause.from_row("no_prefetch", row, ledger, evidence, _REMEDY, specific=Specific.COUNT)
    return less_competition(cause, case, exchange)


def _is_alike(before: Traffic, after: Traffic) -> bool:
    if not (before.calls and before.bytes):
        return False
    ratios = after.calls / before.calls, after.bytes / before.bytes
    return all(1 / POLICY.same_bytes_ratio <= ratio <= POLICY.same_bytes_ratio for ratio in ratios)


def _hides_less(before: Traffic, after: Traffic) -> bool:
    """Return true if gathers that take about as long are no longer hidden."""
    flight = before.hidden_ns + before.exposed_ns
    was_hidden = before.hidden_ns >= MIN_HIDDEN_SHARE * flight > 0
    is_hidden = after.hidden_ns > MAX_HIDDEN_RATIO * before.hidden_ns
    is_slower = after.hidden_ns + after.exposed_ns > MAX_FLIGHT_RATIO * flight
    return was_hidden and not is_hidden and not is_slower
