"""The last stage of a pipeline, with the head and the loss, takes longer than the others."""

from __future__ import annotations

from profkit.explain.rules._stages import describe, find_uneven
from profkit.explain.rules.base import Case, Cause, all_of, share_of
from profkit.vocab import Phase

EXPLAINS = ("exposed_communication", "late_rank", "time_outside_phases", "tiny_collectives")


def find(case: Case) -> Cause | None:
    uneven = find_uneven(case)
    if uneven is None or not uneven.has_last:
        return None
    remedy = "give the last stage fewer layers: the head and the loss are part of it"
    return Cause(
        "long_last_stage",
        uneven.cost_ns,
        share_of(uneven.cost_ns.value, case.ledger),
        describe(case, uneven),
        remedy,
        takes=all_of(*EXPLAINS),
        rows=(Phase.FORWARD.value, Phase.BACKWARD.value, Phase.ALLREDUCE.value),
    )
