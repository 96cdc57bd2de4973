"""One rank of a pipeline has more to compute than the others, which wait for it."""

from __future__ import annotations

from profkit.explain.rules._stages import describe, find_uneven
from profkit.explain.rules.base import Case, Cause, all_of, share_of
from profkit.vocab import Phase

EXPLAINS = ("exposed_communication", "late_rank", "time_outside_phases", "tiny_collectives")


def find(case: Case) -> Cause | None:
    uneven = find_uneven(case)
    if uneven is None or uneven.has_last:
        return None
    remedy = f"move layers from rank {uneven.rank} to the others, until all compute for as long"
    return Cause(
        "uneven_stages",
        uneven.cost_ns,
        share_of(uneven.cost_ns.value, case.ledger),
        describe(case, uneven),
        remedy,
        takes=all_of(*EXPLAINS),
        rows=(Phase.FORWARD.value, Phase.BACKWARD.value, Phase.ALLREDUCE.value),
    )
