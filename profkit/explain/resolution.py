"""The rows that two runs have in common, so that they can be compared."""

from __future__ import annotations

from profkit.analysis.costs import INPUT, OWN, RunCosts


def at_one_resolution(base: RunCosts, target: RunCosts) -> tuple[RunCosts, RunCosts]:
    """Return both sides in the rows of the coarser one, because a missing row is not zero.

    Logs have no phases, and some not even the wait for data.
    """
    knows_phases = (base.knows_phases or not base.steps) and (
        target.knows_phases or not target.steps
    )
    if knows_phases:
        if OWN in base.parts and OWN in target.parts:
            return base, target
        return base.without_own(), target.without_own()
    if INPUT in base.parts and INPUT in target.parts:
        return base.without_phases(), target.without_phases()
    return base.of_wall_alone(), target.of_wall_alone()
