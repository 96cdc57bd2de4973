"""Checkpoints are written while training waits."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules import slow_line
from profkit.explain.rules._other import Growth, growth_of
from profkit.explain.rules._outside import added_places
from profkit.explain.rules.base import (
    Case,
    Cause,
    all_of,
    cost,
    grew,
    here,
    is_material,
    share_of,
)
from profkit.frame.estimate import scale
from profkit.frame.phases import UNKNOWN
from profkit.text import duration
from profkit.vocab import Phase

CHECKPOINT = "checkpoint"
"""The name of the spans in which a checkpoint is written."""

MOSTLY = 0.5
"""Time is counted with checkpoints if at least this share of what was added follows them."""

EXPLAINS = ("evaluation_in_training",)
_OTHER = Phase.OTHER.value
_REMEDY = (
    "save less often, or in the background: copy the weights and write them on a thread "
    "(torch.distributed.checkpoint.async_save, paddle.async_save)"
)


def find(case: Case) -> Cause | None:
    """Count what the framework writes, and what the loop does behind it: flush, copy, hash."""
    growth = growth_of(case, [CHECKPOINT])
    if growth is None:
        return None
    ledger = case.ledger
    words = [f"checkpoints went {growth.describe(case)}, averaged over all steps"]
    price, explains, rows = growth.cost_ns, [*EXPLAINS], [_OTHER]
    behind_ns = _added_behind(case, growth)
    if behind_ns:
        explains.append("time_outside_phases")
        rows.append(UNKNOWN)
        whole = cost(sum_rows(ledger, "checkpoints", rows), ledger)
        price = scale(whole, (growth.cost_ns.value + behind_ns) / whole.value)
        took = duration(behind_ns)
        words.append(f"{here(ledger)}the time behind them, outside all phases, is {took} longer")
        line, _ = slow_line.longest(case, UNKNOWN)
        words += [line] if line else []
    return Cause(
        "checkpoint_in_training",
        price,
        share_of(price.value, ledger),
        "; ".join(words),
        _REMEDY,
        takes=all_of(*explains),
        rows=tuple(rows),
    )


def _added_behind(case: Case, growth: Growth) -> float:
    """Return the time per step that was added behind checkpoints, outside all phases.

    It is counted if checkpoints are most of what the phase grew by: the places behind the phase are
    behind checkpoints then.
    """
    ledger = case.ledger
    written, outside = ledger.find(_OTHER), ledger.find(UNKNOWN)
    if written is None or outside is None or not grew(outside, ledger):
        return 0.0
    if growth.cost_ns.value < MOSTLY * cost(written, ledger).value:
        return 0.0
    added_ns = 0.0
    for (after, _), ns in added_places(case).items():
        added_ns += ns if after == _OTHER else 0.0
    whole_ns = cost(outside, ledger).value
    added_ns = min(added_ns, whole_ns)
    is_most = added_ns >= MOSTLY * whole_ns and is_material(added_ns, ledger)
    return added_ns if is_most else 0.0
