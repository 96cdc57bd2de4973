"""Tensors are copied between layouts or number formats within the step."""

from __future__ import annotations

from profkit.explain.rules.base import (
    WORK,
    Case,
    Cause,
    Specific,
    compute_row,
    cost,
    from_to,
    grew,
    in_time,
    is_material,
    share_of,
    share_of_gap,
)
from profkit.frame.estimate import Estimate
from profkit.text import duration, significant

WHOLE_COST_SHARE = 0.5
"""Copies of more than this share of what computing adds cause all of it: they slow other work."""

_REMEDY = (
    "keep one layout throughout (channels_last for model and batch alike), and no .contiguous(), "
    ".permute() or .to() inside the model that undoes another"
)


def find(case: Case) -> Cause | None:
    """Compare the kernel windows of both sides."""
    ledger, before, after = case.ledger, case.before.windows, case.after.windows
    if before is None or after is None:
        return None
    added = after.moving_ns - before.moving_ns
    row = compute_row(ledger, WORK)
    if not is_material(added, ledger) or not grew(row, ledger):
        return None
    was, now = in_time(ledger, before, after)
    evidence = (
        f"casts and layout copies went from {duration(was.moving_ns)} to "
        f"{duration(now.moving_ns)} per captured step, "
        f"{significant(was.moving_calls)} to {significant(now.moving_calls)} calls; "
        f"computing went from {from_to(row, ledger)} per step"
    )
    price, share = Estimate(added), share_of(added, ledger)
    if added > WHOLE_COST_SHARE * row.delta.value * ledger.samples_per_step:
        price, share = cost(row, ledger), share_of_gap(row, ledger)
    return Cause(
        "layout_copies", price, share, evidence, _REMEDY, specific=Specific.OPERATOR, rows=WORK
    )
