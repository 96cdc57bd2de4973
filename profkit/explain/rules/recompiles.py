"""The framework compiles functions again after the warm-up, because guards fail."""

from __future__ import annotations

from profkit.analysis.compiling import Recompiled, find_recompiled
from profkit.analysis.estimate import Estimate
from profkit.explain.evidence import Evidence
from profkit.explain.rules._compiling import added_ns, in_figures, later_ns, later_steps
from profkit.explain.rules.base import (
    FRAMEWORKS,
    Case,
    Cause,
    all_of,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.text import duration, plural
from profkit.vocab import Phase

EXPLAINS = ("garbage_pauses", "time_outside_phases", "drift")
"""The compiler makes garbage; the rest only if the rows contain the steps that compiled."""
MOST_NAMED = 2

_REMEDY = (
    "make what the guards check constant: pad batches to a few sizes, drop the last partial batch, "
    "or mark the dimension as dynamic"
)
_REMEDY_IN = {
    "pytorch": (
        f"{_REMEDY} (mark_dynamic, or dynamic=True); torch runs a function uncompiled once it has "
        "too many variants (torch._dynamo.config.recompile_limit, 8 by default)"
    ),
    "paddle": f"{_REMEDY} (input_spec=[InputSpec([None, ...])] of to_static)",
}


def find(case: Case) -> Cause | None:
    """Compare what compiling costs after the warm-up.

    The rows of the ledger exclude steps that compiled unless they are too many, so that the cost is
    mostly no part of the gap. It is measured, not estimated, so it has no interval.
    """
    recompiled = case.after.figure(_recompiled)
    if not recompiled:
        return None
    again_ns = [later_ns(each, again=True) for each in (case.before, case.after)]
    ns = [float(each.max(axis=0).sum()) for each in again_ns]
    cost_ns = added_ns(case, *ns)
    if not is_material(cost_ns, case.ledger):
        return None
    steps = int((again_ns[1] > 0).any(axis=0).sum())
    named = "; ".join(
        f"{each.function or 'a function'} {plural(each.times, 'time')}, because of {each.guard}"
        for each in recompiled[:MOST_NAMED]
    )
    evidence = (
        f"{here(case.ledger)}{plural(steps, 'step')} after the warm-up compiled functions again, "
        f"{duration(ns[1])} in all: {named}; {duration(ns[0])} in the {other_side(case.ledger)}"
    )
    is_in_rows = in_figures(case.after)
    framework = FRAMEWORKS.get(case.target.framework, "")
    return Cause(
        "recompiles",
        Estimate(cost_ns),
        share_of(cost_ns, case.ledger) if is_in_rows else None,
        evidence if is_in_rows else f"{evidence}; no row above includes it",
        _REMEDY_IN.get(framework, _REMEDY),
        takes=all_of(*EXPLAINS) if is_in_rows else all_of(*EXPLAINS[:1]),
        rows=(Phase.COMPILE.value,) if is_in_rows else (),
        is_outside=not is_in_rows,
    )


def _recompiled(evidence: Evidence) -> tuple[Recompiled, ...]:
    return find_recompiled(evidence.trace, later_steps(evidence))
