"""The host waits for the device within the step, and the device then waits for the host."""

from __future__ import annotations

from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.explain.rules.base import (
    WORK,
    Case,
    Cause,
    Specific,
    compute_row,
    from_to,
    grew,
    in_time,
)
from profkit.text import significant

MIN_ADDED_COPIES = 2.0
"""A step has at least this many copies to the host more, at each of which the host waits."""

_REMEDY = (
    "keep values on the device: no .item(), .cpu(), print or if on a tensor in the loop; log every "
    "so many steps, and copy with non_blocking=True"
)


def find(case: Case) -> Cause | None:
    """Compare the copies to the host in both sides' kernel windows."""
    ledger, before, after = case.ledger, case.before.windows, case.after.windows
    if before is None or after is None or after.on_host:
        return None
    was = before.calls_by_category.get(COPY_CATEGORIES["DtoH"], 0.0)
    now = after.calls_by_category.get(COPY_CATEGORIES["DtoH"], 0.0)
    row = compute_row(ledger, WORK)
    if now < was + MIN_ADDED_COPIES or not grew(row, ledger):
        return None
    first, then = in_time(ledger, was, now)
    evidence = (
        f"{significant(first)} copies to the host per step became {significant(then)}, after each "
        "of which the device has nothing to do; "
        f"computing went from {from_to(row, ledger)} per step"
    )
    return Cause.from_row("sync_stalls", row, ledger, evidence, _REMEDY, specific=Specific.OPERATOR)
