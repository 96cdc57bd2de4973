"""Checkpoints are written while training waits."""

from __future__ import annotations

from profkit.analysis.estimate import Estimate, scale
from profkit.explain.rules.base import Case, Cause, all_of, cost, in_time, is_material, share_of
from profkit.text import duration
from profkit.vocab import Phase

CHECKPOINT = "checkpoint"
"""The name of the spans in which a checkpoint is written."""

EXPLAINS = ("evaluation_in_training",)
_REMEDY = (
    "save less often, or in the background: copy the weights and write them on a thread "
    "(torch.distributed.checkpoint.async_save, paddle.async_save)"
)


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    row = ledger.find(Phase.OTHER.value)
    base_factor = ledger.batch_factor(case.before.step_samples)
    before = case.before.other_ns.get(CHECKPOINT, 0.0) * base_factor
    target_factor = ledger.batch_factor(case.after.step_samples)
    after = case.after.other_ns.get(CHECKPOINT, 0.0) * target_factor
    added = after - before
    if row is None or not is_material(added, ledger):
        return None
    whole = cost(row, ledger)
    price = Estimate(added)
    if whole.value > 0:
        price = scale(whole, added / whole.value)
    if price.low is not None and price.low <= 0:
        return None
    first, then = in_time(ledger, before, after)
    evidence = (
        f"checkpoints went from {duration(first)} to {duration(then)} per step, "
        "averaged over all steps"
    )
    return Cause(
        "checkpoint_in_training",
        price,
        share_of(added, ledger),
        evidence,
        _REMEDY,
        takes=all_of(*EXPLAINS),
        rows=(row.name,),
    )
