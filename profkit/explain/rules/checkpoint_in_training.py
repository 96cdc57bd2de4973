"""Checkpoints are written while training waits."""

from __future__ import annotations

from profkit.explain.rules._other import growth_of
from profkit.explain.rules.base import Case, Cause, all_of, share_of
from profkit.vocab import Phase

CHECKPOINT = "checkpoint"
"""The name of the spans in which a checkpoint is written."""

EXPLAINS = ("evaluation_in_training",)
_REMEDY = (
    "save less often, or in the background: copy the weights and write them on a thread "
    "(torch.distributed.checkpoint.async_save, paddle.async_save)"
)


def find(case: Case) -> Cause | None:
    growth = growth_of(case, [CHECKPOINT])
    if growth is None:
        return None
    return Cause(
        "checkpoint_in_training",
        growth.cost_ns,
        share_of(growth.cost_ns.value, case.ledger),
        f"checkpoints went {growth.describe(case)}, averaged over all steps",
        _REMEDY,
        takes=all_of(*EXPLAINS),
        rows=(Phase.OTHER.value,),
    )
