"""The schedule of a pipeline takes longer itself, between its stages and messages."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.explain.rules._other import OF_PIPELINE, growth_of
from profkit.explain.rules._stages import pipeline_of
from profkit.explain.rules.base import Case, Cause, in_time, share_of
from profkit.vocab import Phase

_FEWER = "divide the batch into fewer microbatches: the schedule takes time for each of them"
_LINES = "'profkit run --lines on' samples the lines that run there"


def find(case: Case) -> Cause | None:
    if not any(name in case.before.other_ns for name in OF_PIPELINE):
        return None  # the base's schedule was not recorded
    growth = growth_of(case, OF_PIPELINE)
    if growth is None:
        return None
    divides = [*_microbatches(case)]
    words = [f"the pipeline's own schedule went {growth.describe(case)}", *divides]
    return Cause(
        "pipeline_schedule",
        growth.cost_ns,
        share_of(growth.cost_ns.value, case.ledger),
        "; ".join(words),
        _FEWER if divides else _LINES,
        rows=(Phase.OTHER.value,),
    )


def _microbatches(case: Case) -> Iterator[str]:
    """Yield the microbatches of a step, if the run with the longer schedule has more of them."""
    before, after = case.before.figure(pipeline_of), case.after.figure(pipeline_of)
    if before is not None and after is not None and after.microbatches > before.microbatches:
        first, then = in_time(case.ledger, before.microbatches, after.microbatches)
        yield f"microbatches per step went from {first} to {then}"
