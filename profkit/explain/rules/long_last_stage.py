"""The last stage of a pipeline, with the head and the loss, takes longer than the others."""

from __future__ import annotations

from profkit.explain.rules._stages import find_uneven, stage_cause
from profkit.explain.rules.base import Case, Cause


def find(case: Case) -> Cause | None:
    uneven = find_uneven(case)
    if uneven is None or not uneven.has_last:
        return None
    remedy = "give the last stage fewer layers: the head and the loss are part of it"
    return stage_cause("long_last_stage", case, uneven, remedy)
