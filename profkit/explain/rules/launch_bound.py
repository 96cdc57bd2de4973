"""The step is many small pieces of work: starting each takes as long as doing it."""

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
    here,
    in_time,
    other_side,
)
from profkit.text import duration, percent, significant

MIN_CALLS_RATIO = 1.5
"""There are many small calls if a step has more than this many times the base's calls."""

MAX_LENGTH_RATIO = 0.8
"""There are many small calls if the mean call is shorter than this share of the base's."""

MAX_MOVED_SHARE = 0.5
"""If copies and casts make more than this share of what computing adds, they are the cause."""

MIN_ADDED_WAITING_SHARE = 0.1
"""The device waits for launches if it is idle for them for this much more of its time."""

_REMEDY = (
    "do more in each call: whole tensors in place of loops over their parts, fused operators, "
    "a compiler (torch.compile, paddle.jit.to_static), CUDA graphs, larger batches"
)


def find(case: Case) -> Cause | None:
    """Compare the kernel windows of both sides: only they separate many calls from long ones."""
    ledger, before, after = case.ledger, case.before.windows, case.after.windows
    row = compute_row(ledger, WORK)
    if before is None or after is None or not grew(row, ledger):
        return None
    waited, waits = before.launched_late_share or 0.0, after.launched_late_share
    waits_more = waits is not None and waits > waited + MIN_ADDED_WAITING_SHARE
    has_smaller_calls = (
        after.calls > MIN_CALLS_RATIO * before.calls
        and after.mean_ns < MAX_LENGTH_RATIO * before.mean_ns
    )
    moved_ns = after.moving_ns - before.moving_ns
    moves_data = moved_ns >= MAX_MOVED_SHARE * cost(row, ledger).value
    if not waits_more and (moves_data or not has_smaller_calls):
        return None
    noun = "kernels"
    if after.on_host:
        noun = "operators"
    was, now = in_time(ledger, before, after)
    evidence = (
        f"{significant(was.calls)} {noun} per step of {duration(was.mean_ns)} each became "
        f"{significant(now.calls)} of {duration(now.mean_ns)}; "
    )
    if waits is not None:
        evidence += (
            f"{here(ledger)}"
            f"the device is idle for {percent(waits, 0)} of its time because the host launches "
            f"late, {percent(waited, 0)} in the {other_side(ledger)}; "
        )
    evidence += f"computing went from {from_to(row, ledger)} per step"
    return Cause.from_row("launch_bound", row, ledger, evidence, _REMEDY, specific=Specific.WORK)
