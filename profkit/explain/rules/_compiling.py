"""Shared by the rules about compilers: what one did after a run's warm-up."""

from __future__ import annotations

import numpy as np

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import Case
from profkit.frame.compiling import Compiling, find_compiling
from profkit.frame.estimate import Floats, Ints
from profkit.frame.selection import NO_STEPS, WARM_UP


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
