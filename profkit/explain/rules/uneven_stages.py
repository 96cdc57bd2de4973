"""One rank of a pipeline has more to compute than the others, which wait for it."""

from __future__ import annotations

from profkit.explain.rules._stages import find_uneven, stage_cause
from profkit.explain.rules.base import Case, Cause


def find(case: Case) -> Cause | None:
    uneven = find_uneven(case)
    if uneven is None or uneven.has_last:
        return None
    remedy = f"move layers from rank {uneven.rank} to the others, until all compute for as long"
    return stage_cause("uneven_stages", case, uneven, remedy)
