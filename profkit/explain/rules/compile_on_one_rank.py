"""Some ranks compile in a step in which the others do not, and all of them wait."""

from __future__ import annotations

import numpy as np

from profkit.explain.evidence import Evidence
from profkit.explain.rules._compiling import added_ns, compiling_of, in_figures, later_ns
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Estimate
from profkit.frame.selection import COMPILING
from profkit.text import duration, plural

_REMEDY = (
    "give all ranks batches of the same shapes, or mark the dimension as dynamic, so that they "
    "compile in the same step; keep what only one rank does (logging, evaluation) out of the "
    "compiled function"
)


def find(case: Case) -> Cause | None:
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
    is_in_rows = in_figures(case.after)
    return Cause(
        "compile_on_one_rank",
        Estimate(cost_ns),
        share_of(cost_ns, case.ledger) if is_in_rows else None,
        evidence if is_in_rows else f"{evidence}; no row above includes it",
        _REMEDY,
        specific=Specific.RANK,
        apart="" if is_in_rows else COMPILING,
    )


def _by_few(evidence: Evidence) -> Bools:
    """Return which later steps compiled on at most half of the ranks."""
    took = later_ns(evidence) > 0
    return np.asarray(took.any(axis=0) & (took.mean(axis=0) <= 1 / 2))


def _alone_ns(evidence: Evidence) -> float:
    """Return how long the slowest rank compiled in steps in which few ranks did."""
    few = _by_few(evidence)
    return float(later_ns(evidence)[:, few].max(axis=0).sum()) if few.any() else 0.0
