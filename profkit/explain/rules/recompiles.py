"""The framework compiles functions again after the warm-up, because guards fail."""

from __future__ import annotations

from profkit.explain.evidence import Evidence
from profkit.explain.rules._compiling import (
    added_ns,
    compiling_of,
    in_figures,
    later_ns,
    later_steps,
)
from profkit.explain.rules.base import (
    FRAMEWORKS,
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.frame.compiling import Recompiled, find_recompiled
from profkit.frame.estimate import Estimate
from profkit.frame.selection import COMPILING
from profkit.text import duration, plural
from profkit.vocab import Phase

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
        return _uncompiled(case)
    again_ns = [later_ns(each, again=True) for each in (case.before, case.after)]
    ns = [float(each.max(axis=0).sum()) for each in again_ns]
    cost_ns = added_ns(case, *ns)
    if not is_material(cost_ns, case.ledger):
        return _uncompiled(case)
    steps = int((again_ns[1] > 0).any(axis=0).sum())
    named = "; ".join(
        f"{each.function or 'a function'} {plural(each.times, 'time')}, because of {each.guard}"
        for each in recompiled[:MOST_NAMED]
    )
    evidence = (
        f"{here(case.ledger)}{plural(steps, 'step')} after the warm-up compiled functions again, "
        f"{duration(ns[1])} in all: {named}; {duration(ns[0])} in the {other_side(case.ledger)}"
    )
    limited = _limited(case)
    evidence += f"; {limited}" if limited else ""
    is_in_rows = in_figures(case.after)
    return Cause(
        "recompiles",
        Estimate(cost_ns),
        share_of(cost_ns, case.ledger) if is_in_rows else None,
        evidence if is_in_rows else f"{evidence}; no row above includes it",
        _remedy(case),
        specific=Specific.PART,
        rows=(Phase.COMPILE.value,) if is_in_rows else (),
        apart="" if is_in_rows else COMPILING,
    )


def _remedy(case: Case) -> str:
    return _REMEDY_IN.get(FRAMEWORKS.get(case.target.framework, ""), _REMEDY)


def _uncompiled(case: Case) -> Cause | None:
    """Return functions that run uncompiled, if they do not in the base; their cost is unknown."""
    limited = _limited(case)
    if not limited:
        return None
    evidence = f"{here(case.ledger)}{limited}; what that costs is not measured"
    return Cause("recompiles", None, None, evidence, _remedy(case))


def _limited(case: Case) -> str:
    """Return which functions have too many variants in the target, and not in the base."""
    found = [each.figure(compiling_of) for each in (case.before, case.after)]
    before, after = ((each.over_limit if each else ()) for each in found)
    new = [(name, count) for name, count in after if name not in dict(before)]
    words = [
        f"{name} has {plural(count, 'variant')}, the most that the compiler allows"
        for name, count in new[:MOST_NAMED]
    ]
    if not words:
        return ""
    more = ""
    if len(new) > MOST_NAMED:
        more = f"; so do {len(new) - MOST_NAMED:,} more"
    return f"{'; '.join(words)}{more}; other inputs run uncompiled"


def _recompiled(evidence: Evidence) -> tuple[Recompiled, ...]:
    return find_recompiled(evidence.trace, later_steps(evidence))
