"""Python's garbage collector stops the process that trains."""

from __future__ import annotations

import math

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    share_of,
    shift,
    significantly_more,
)
from profkit.frame.estimate import Z_95, Estimate, scale
from profkit.text import duration, significant

_REMEDY = (
    "gc.freeze() after the first steps, and gc.disable() with a collection of your own every so "
    "many steps; keep fewer small objects alive"
)


def find(case: Case) -> Cause | None:
    before, after = case.before.figure(garbage_ns), case.after.figure(garbage_ns)
    if after is None:
        return None
    known = 0.0
    if before is not None:
        known = before.value
    added = after.value - known
    if not is_material(added, case.ledger) or not significantly_more(before, after):
        return None
    evidence = (
        f"{here(case.ledger)}collections pause the process for {duration(after.value)} per step"
    )
    rate = case.after.counters.rate("garbage", "collections_count")
    if rate is not None:
        evidence += f", {significant(rate.value)} collections per second"
    return Cause(
        "garbage_pauses",
        shift(after, -known),
        share_of(added, case.ledger),
        f"{evidence}; {duration(known)} in the {other_side(case.ledger)}",
        _REMEDY,
        specific=Specific.COUNT,
    )


def garbage_ns(evidence: Evidence) -> Estimate | None:
    """Return the time of collections per step, on average over the ranks.

    If the run is too short for the readings themselves to scatter, the number of collections gives
    the interval. The sum of events whose sizes scatter by as much as their mean has a relative
    error of sqrt(2 / count). Collections come regularly, so they scatter less.
    """
    rate = evidence.counters.rate("garbage", "pause_seconds")
    if rate is None:
        return None
    if not rate.judged:
        count = 0.0
        for _, values in evidence.counters.series("garbage", "collections_count"):
            count += values[-1] - values[0]
        if count > 0:
            half = Z_95 * rate.value * math.sqrt(2 / count)
            rate = Estimate(rate.value, rate.value - half, rate.value + half)
    return scale(rate, evidence.step_ns)
