"""The step becomes slower while the run lasts."""

from __future__ import annotations

from profkit.analysis.estimate import Estimate
from profkit.analysis.trend import find_trend
from profkit.explain.rules.base import Case, Cause, all_of, here, is_material, share_of
from profkit.text import duration, percent

EXPLAINS = ("time_outside_phases",)
_REMEDY = (
    "look at what grows with the run: lists and graphs that are kept (loss without .item()), logs, "
    "fragmented memory, temperature and clocks, a cache that fills up"
)


def find(case: Case) -> Cause | None:
    """Compare what the trends of both runs add to their average steps."""
    ledger, after = case.ledger, find_trend(case.after.costs)
    if after is None or not after.rises:
        return None
    before = find_trend(case.before.costs)
    added = after.added_ns
    if before is not None:
        added = _subtract(after.added_ns, before.added_ns)
    if not is_material(added.value, ledger) or (added.low or 0.0) <= 0:
        return None
    evidence = (
        f"{here(ledger)}"
        f"the step goes from {duration(after.first_ns)} to {duration(after.last_ns)} over the run "
        f"and rises {percent(after.share_rising, 0)} of the time"
    )
    detail = ""
    for reason in ("power", "heat", "power_brake"):
        share = case.after.counters.level("nvml", f"throttled_by_{reason}_ratio")
        if share:
            detail = "throttling"
            evidence += f"; the device is throttled by {reason} {percent(share, 0)} of the time"
    return Cause(
        "drift",
        added,
        share_of(added.value, ledger),
        evidence,
        _REMEDY,
        detail=detail,
        takes=all_of(*EXPLAINS),
    )


def _subtract(one: Estimate, other: Estimate) -> Estimate:
    """Return the difference with the widest interval that both intervals allow."""
    value = one.value - other.value
    if one.low is None or one.high is None:
        return Estimate(value)
    below = above = 0.0
    if other.low is not None:
        below = abs(other.low - other.value)
    if other.high is not None:
        above = abs(other.high - other.value)
    return Estimate(value, one.low - other.value - above, one.high - other.value + below)
