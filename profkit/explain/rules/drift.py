"""The step becomes slower while the run lasts."""

from __future__ import annotations

from profkit.analysis.estimate import Estimate
from profkit.analysis.trend import find_trend
from profkit.explain.rules.base import Case, Finding, is_material, share_of
from profkit.text import duration, percent

_REMEDY = "look at what grows with the run: lists and graphs that are kept (loss without .item()), logs, fragmented memory, temperature and clocks, a cache that fills up"


def find(case: Case) -> Finding | None:
    """What the slope adds to the average step, over the base's own slope."""
    ledger, after = case.ledger, find_trend(case.after.costs)
    if after is None or not after.rises:
        return None
    before = find_trend(case.before.costs)
    known = before.added_ns if before is not None else Estimate(0.0)
    added = _minus(after.added_ns, known)
    if not is_material(added.value, ledger) or (added.low or 0.0) <= 0:
        return None
    words = [
        f"the step goes from {duration(after.first_ns)} to {duration(after.last_ns)} over the run, {percent(after.share_rising, 0)} of the time upwards",
        *_clocks(case),
    ]
    return Finding(
        "drift",
        added,
        share_of(added.value, ledger),
        "; ".join(words),
        _REMEDY,
        cause="throttling" if len(words) > 1 else "",
    )


def _minus(one: Estimate, other: Estimate) -> Estimate:
    low, high = one.low, one.high
    if low is None or high is None:
        return Estimate(one.value - other.value)
    below, above = (
        abs(bound - other.value) if bound is not None else 0.0 for bound in (other.low, other.high)
    )
    return Estimate(one.value - other.value, low - other.value - above, high - other.value + below)


def _clocks(case: Case) -> list[str]:
    """What the devices say of their clocks."""
    reasons = ("power", "heat", "power_brake")
    told = {reason: case.after.level("nvml", f"throttled_by_{reason}_ratio") for reason in reasons}
    return [
        f"the device is throttled by {reason} {percent(share, 0)} of the time"
        for reason, share in told.items()
        if share
    ]
