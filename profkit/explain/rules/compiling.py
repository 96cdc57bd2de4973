"""What compilers cost after the warm-up, on one rank or all, and where they gave up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from profkit.explain.evidence import Evidence
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
from profkit.frame.compiling import (
    Compiling,
    Recompiled,
    find_compiling,
    find_recompiled,
    join_reason,
)
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Estimate, Floats, Ints
from profkit.frame.selection import COMPILING, NO_STEPS, WARM_UP
from profkit.text import duration, plural
from profkit.vocab import Phase

MOST_NAMED = 3


def compiling_of(evidence: Evidence) -> Compiling | None:
    return find_compiling(evidence.trace)


def later_steps(evidence: Evidence) -> Ints:
    """Return the steps after the warm-up that compiled."""
    found = evidence.figure(compiling_of)
    if found is None:
        return NO_STEPS
    return np.setdiff1d(found.steps, evidence.costs.selection.which.get(WARM_UP, NO_STEPS))


def later_ns(evidence: Evidence, *, again: bool = False) -> Floats:
    """Return the time of compilations after the warm-up, by (rank, step that compiled).

    A smaller last batch of an epoch, which the figures exclude, often makes functions compile.
    With `again`, only steps count in which a guard of that rank failed.
    """
    found = evidence.figure(compiling_of)
    if found is None:
        return np.zeros((1, 0))
    took_ns = np.where(found.again, found.rank_ns, 0.0) if again else found.rank_ns
    return np.asarray(took_ns[:, np.isin(found.steps, later_steps(evidence))])


def added_ns(case: Case, before_ns: float, after_ns: float) -> float:
    """Return the growth of a time of all later steps, per step of the base's batch."""
    found = []
    for evidence, ns in ((case.before, before_ns), (case.after, after_ns)):
        counts = evidence.in_all
        later = max(1, sum(counts.values()) - counts[WARM_UP])
        found.append(ns / later * case.ledger.batch_factor(evidence.step_samples))
    return found[1] - found[0]


def in_figures(evidence: Evidence) -> bool:
    """Return true if steps that compiled are among the used ones, because so many do."""
    found = evidence.figure(compiling_of)
    return found is not None and bool(np.isin(found.steps, evidence.used).any())


# Functions that are compiled again, because guards fail.
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


def recompiles(case: Case) -> Cause | None:
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
    cause = _measured(case, "recompiles", cost_ns, evidence, _remedy(case), Specific.PART)
    if cause.apart:
        return cause
    return replace(cause, rows=(Phase.COMPILE.value,))


def _measured(
    case: Case, kind: str, cost_ns: float, evidence: str, remedy: str, specific: Specific
) -> Cause:
    """Return a cause with its measured cost, which most runs' figures exclude."""
    cause = Cause(kind, Estimate(cost_ns), None, evidence, remedy, specific=specific)
    if in_figures(case.after):
        return replace(cause, share_of_gap=share_of(cost_ns, case.ledger))
    return replace(cause, evidence=f"{evidence}; no row above includes it", apart=COMPILING)


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


# Ranks that compile alone, while the others wait.
_SAME_STEP = (
    "give all ranks batches of the same shapes, or mark the dimension as dynamic, so that they "
    "compile in the same step; keep what only one rank does (logging, evaluation) out of the "
    "compiled function"
)


def compile_on_one_rank(case: Case) -> Cause | None:
    """Compare the time that most ranks spent waiting for a few that compiled."""
    after = case.after.figure(compiling_of)
    if after is None or len(after.ranks) < 2:
        return None
    cost_ns = added_ns(case, _alone_ns(case.before), _alone_ns(case.after))
    if not is_material(cost_ns, case.ledger):
        return None
    took_ns = later_ns(case.after)
    few = _by_few(case.after)
    rank = after.ranks[int(took_ns[:, few].sum(axis=1).argmax())]
    evidence = (
        f"{here(case.ledger)}in {plural(int(few.sum()), 'step')} after the warm-up only some of "
        f"{len(after.ranks)} ranks compiled, mostly rank {rank}, for "
        f"{duration(_alone_ns(case.after))} in all, and the others did not; "
        f"{duration(_alone_ns(case.before))} in the {other_side(case.ledger)}"
    )
    return _measured(case, "compile_on_one_rank", cost_ns, evidence, _SAME_STEP, Specific.RANK)


def _by_few(evidence: Evidence) -> Bools:
    """Return which later steps compiled on at most half of the ranks."""
    took = later_ns(evidence) > 0
    return np.asarray(took.any(axis=0) & (took.mean(axis=0) <= 1 / 2))


def _alone_ns(evidence: Evidence) -> float:
    """Return how long the slowest rank compiled in steps in which few ranks did."""
    few = _by_few(evidence)
    if few.any():
        return float(later_ns(evidence)[:, few].max(axis=0).sum())
    return 0.0


# Functions that are divided at places that the compiler cannot follow, or given up.
_NO_BREAKS = (
    "move prints, .item() and other reads on the host out of the compiled function, or compile "
    "with fullgraph=True, which stops at the first break; compare both ways to see what they cost"
)


def graph_breaks(case: Case) -> Cause | None:
    """Compare the places at which functions are divided, and functions that were given up.

    What a graph break costs is not measured: less is fused, and Python runs in between.
    """
    breaks, failed = zip(_places(case.before), _places(case.after), strict=True)
    other = other_side(case.ledger)
    said = []
    if new := _more(*breaks):
        divided = f"compiled functions are divided at {plural(len(breaks[1]), 'place')}"
        said.append(f"{divided}, {len(breaks[0]):,} in the {other}: {new}")
    if new := _more(*failed):
        given_up = f"{plural(len(failed[1]), 'function')} could not be compiled"
        said.append(f"{given_up}, {len(failed[0]):,} in the {other}: {new}")
    if not said:
        return None
    evidence = f"{here(case.ledger)}{'; '.join(said)}; what that costs is not measured"
    return Cause("graph_breaks", None, None, evidence, _NO_BREAKS)


def _more(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the first new places, if there are more of them than before."""
    new = [place for place in after if place not in before]
    if len(after) <= len(before) or not new:
        return ""
    named = "; ".join(new[:MOST_NAMED])
    more = len(new) - MOST_NAMED
    if more > 0:
        return f"{named}; and {more:,} more"
    return named


def _places(evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the places of graph breaks, and the functions that could not be compiled."""
    found = evidence.figure(compiling_of)
    if found is None:
        return (), ()
    failed = (join_reason(*which) for which, _ in found.failed)
    return tuple(dict(found.breaks)), tuple(failed)
