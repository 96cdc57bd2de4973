"""Python's garbage collector stops the process that trains."""

from __future__ import annotations

from profkit.explain.rules.base import (
    Case,
    Finding,
    all_of,
    is_material,
    share_of,
    shift,
    significantly_more,
)
from profkit.text import duration, significant

_REMEDY = "gc.freeze() after the first steps, and gc.disable() with a collection of your own every so many steps; keep fewer small objects alive"


def find(case: Case) -> Finding | None:
    before, after = case.before.garbage_ns, case.after.garbage_ns
    if after is None:
        return None
    known = before.value if before is not None else 0.0
    added = after.value - known
    if not is_material(added, case.ledger) or not significantly_more(before, after):
        return None
    rate = case.after.rate("garbage", "collections_count")
    often = f", {significant(rate.value)} collections a second" if rate is not None else ""
    evidence = f"collections pause the process for {duration(after.value)} a step{often}; {duration(known)} in the base"
    return Finding(
        "garbage_pauses",
        shift(after, -known),
        share_of(added, case.ledger),
        evidence,
        _REMEDY,
        takes=all_of("drift", "optimizer_unfused"),
    )
