"""The host waits for the device within the step, and the device then waits for the host."""

from __future__ import annotations

from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.explain.rules.base import (
    Case,
    Finding,
    all_of,
    compute_row,
    cost,
    from_to,
    grew,
    share_of_gap,
)
from profkit.text import significant

MORE = 2.0
"""This many copies to the host a step more than the base has: each is a place where the host waits."""

_REMEDY = "keep values on the device: no .item(), .cpu(), print or if on a tensor in the loop; log every so many steps, and copy with non_blocking=True"


def find(case: Case) -> Finding | None:
    """From kernel windows of both sides: what the host asks the device for is a copy to the host."""
    ledger, before, after = case.ledger, case.before.windows, case.after.windows
    if before is None or after is None or after.on_host:
        return None
    asked, asks = (
        each.calls_by_category.get(COPY_CATEGORIES["DtoH"], 0.0) for each in (before, after)
    )
    row = compute_row(ledger)
    if asks < asked + MORE or not grew(row, ledger):
        return None
    evidence = f"{significant(asked)} copies to the host a step became {significant(asks)}, after each of which the device has nothing to do; computing went from {from_to(row, ledger)} a step"
    return Finding(
        "sync_stalls",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("launch_bound"),
    )
