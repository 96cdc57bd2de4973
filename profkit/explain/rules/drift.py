"""The step becomes slower while the run lasts."""

from __future__ import annotations

from profkit.analysis.trend import Trend, find_trend
from profkit.explain.rules.base import Case, Cause, all_of, here, is_material, share_of
from profkit.frame.estimate import Estimate
from profkit.text import duration, percent
from profkit.vocab import THROTTLED

EXPLAINS = ("time_outside_phases",)
_REMEDY = (
    "look at what grows with the run: lists and graphs that are kept (loss without .item()), logs, "
    "fragmented memory, temperature and clocks, a cache that fills up"
)


def find(case: Case) -> Cause | None:
    """Compare what the trends of both runs add to their average steps.

    Where other work hides the trend of the steps, that of the row which grew most may show.
    """
    ledger = case.ledger
    top = max(ledger.rows, key=lambda row: row.delta.value, default=None)
    for row in (None, top):
        part = row.name if row is not None else None
        after = find_trend(case.after.costs, part)
        if after is None or not after.rises:
            continue
        before = find_trend(case.before.costs, part)
        added = _subtract(after.added_ns, before.added_ns) if before else after.added_ns
        if is_material(added.value, ledger) and (added.low or 0.0) > 0:
            return _blame(case, after, added, part)
    return None


def _blame(case: Case, after: Trend, added: Estimate, part: str | None) -> Cause:
    evidence = (
        f"{here(case.ledger)}"
        f"{part or 'the step'} goes from {duration(max(0.0, after.first_ns))} to "
        f"{duration(after.last_ns)} over the run; in {percent(after.share_rising, 0)} of all pairs "
        "of the run's tenths, the later one is slower"
    )
    detail = ""
    for reason in (
        "power_cap",
        "hardware_slowdown",
        "hardware_thermal",
        "software_thermal",
        "power_brake",
    ):
        share = case.after.counters.level("nvml", THROTTLED[reason])
        if share:
            detail = "throttling"
            evidence += f"; the device is throttled by {reason} {percent(share, 0)} of the time"
    return Cause(
        "drift",
        added,
        share_of(added.value, case.ledger),
        evidence,
        _REMEDY,
        detail=detail,
        takes=all_of(*EXPLAINS),
        rows=(part,) if part else (),
    )


def _subtract(one: Estimate, other: Estimate) -> Estimate:
    """Return the difference with the widest interval that both intervals allow.

    A base that became faster takes nothing from the target's own slope, and adds nothing to it.
    """
    base = max(0.0, other.value)
    value = one.value - base
    if one.low is None or one.high is None:
        return Estimate(value)
    below = above = 0.0
    if other.low is not None:
        below = abs(other.low - other.value)
    if other.high is not None:
        above = abs(other.high - other.value)
    return Estimate(value, one.low - base - above, one.high - base + below)
