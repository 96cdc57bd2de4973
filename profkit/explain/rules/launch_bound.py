"""The step is many small pieces of work: starting each takes as long as doing it."""

from __future__ import annotations

from profkit.explain.evidence import Windows
from profkit.explain.rules._windows import moving_ns
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
from profkit.text import duration, percent, significant

MORE = 1.5
"""This many times the base's calls a step,"""

SHORTER = 0.8
"""each at most this share of the base's length."""

WAITED = 0.1
"""Or: this much more of the kernels' time is in calls that an idle device waited for."""

_REMEDY = "do more in each call: whole tensors in place of loops over their parts, fused operators, torch.compile, CUDA graphs, larger batches"


def find(case: Case) -> Finding | None:
    """From kernel windows of both sides; nothing else tells calls that are many from calls that are long."""
    ledger, before, after = case.ledger, case.before.windows, case.after.windows
    row = compute_row(ledger)
    if before is None or after is None or not grew(row, ledger):
        return None
    if not (_smaller(before, after, cost(row, ledger).value) or _waits(before, after)):
        return None
    noun = "operators" if after.on_host else "kernels"
    words = [
        f"{significant(before.calls)} {noun} a step of {duration(before.mean_ns)} became {significant(after.calls)} of {duration(after.mean_ns)}"
    ]
    if after.launch_bound_share is not None:
        words.append(
            f"calls that the idle device waited for hold {percent(after.launch_bound_share, 0)} of their time, {percent(before.launch_bound_share or 0.0, 0)} in the base"
        )
    words.append(f"computing went from {from_to(row, ledger)} a step")
    return Finding(
        "launch_bound",
        cost(row, ledger),
        share_of_gap(row, ledger),
        "; ".join(words),
        _REMEDY,
        takes=all_of("thread_oversubscription"),
    )


def _smaller(before: Windows, after: Windows, added_ns: float) -> bool:
    """More calls of less work; where most of what all steps took longer, and not only the few captured ones, moves data about, that is another cause."""
    moved = moving_ns(after) - moving_ns(before)
    return (
        after.calls > MORE * before.calls
        and after.mean_ns < SHORTER * before.mean_ns
        and moved < added_ns / 2
    )


def _waits(before: Windows, after: Windows) -> bool:
    return (
        after.launch_bound_share is not None
        and after.launch_bound_share > (before.launch_bound_share or 0.0) + WAITED
    )
