"""One module of an FSDP job computes for longer, and the others do not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from profkit.explain.rules._module_times import ModuleTimes, modules_of
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.frame.estimate import Estimate, Floats, estimate_ratios, subtract
from profkit.text import duration, plural, safe_text
from profkit.vocab import Phase

MAX_OTHERS_SHARE = 0.3
"""All other modules together grow by at most this share of what one does."""

ALIKE_SHARE = 0.5
"""A rank shares a module's growth if its own is at least this share of the largest."""

_REMEDY = (
    "look at what changed in this module; a kernel window or sampled stacks "
    "(`profkit run --lines on`) show where its time goes"
)
_REMEDY_OF_LAST = (
    "look at what changed in this module, or after it, as in a head or a loss; a kernel window or "
    "sampled stacks (`profkit run --lines on`) show where the time goes"
)


class Growth(NamedTuple):
    """The module that grew most, in ns per step of the base's batch."""

    module: str
    ranks: tuple[int, ...]
    """The ranks on which it grew."""
    before_ns: float
    after_ns: float
    cost_ns: Estimate
    others_ns: float
    """The growth of the other modules together on the same ranks; negative if they shrank."""
    is_last: bool
    """True if the times hold what is computed after the module as well."""


def find(case: Case) -> Cause | None:
    """Compare the computing of the same modules."""
    ledger = case.ledger
    before, after = case.before.figure(modules_of), case.after.figure(modules_of)
    if before is None or after is None or sorted(before.modules) != sorted(after.modules):
        return None
    if before.ranks != after.ranks:
        return None
    found = _find_growth(case, before, after)
    if found is None or found.cost_ns.low is None or found.cost_ns.low <= 0:
        return None
    if not is_material(found.cost_ns.value, ledger):
        return None
    if abs(found.others_ns) > MAX_OTHERS_SHARE * found.cost_ns.value:
        return None
    rows = [Phase.FORWARD.value, Phase.BACKWARD.value]
    if len(found.ranks) < len(after.ranks):
        rows.append(Phase.ALLREDUCE.value)
    return Cause(
        "slow_module",
        found.cost_ns,
        share_of(found.cost_ns.value, ledger),
        _describe(case, found, len(after.modules) - 1, len(after.ranks)),
        _REMEDY_OF_LAST if found.is_last else _REMEDY,
        specific=Specific.PART,
        rows=tuple(rows),
    )


def _find_growth(case: Case, before: ModuleTimes, after: ModuleTimes) -> Growth | None:
    """Return the growth of the module that grew most on a rank.

    The other ranks wait for that one, so the cost is the growth on the ranks that share it.
    """
    ledger = case.ledger
    order = [before.modules.index(name) for name in after.modules]
    base = before.ns[order] * ledger.batch_factor(case.before.step_samples)
    target = after.ns * ledger.batch_factor(case.after.step_samples)
    growth = target.mean(axis=2) - base.mean(axis=2)
    module, worst = np.unravel_index(int(np.argmax(growth)), growth.shape)
    most = growth[module, worst]
    if most <= 0:
        return None
    chosen = growth[module] >= ALIKE_SHARE * most
    sides = [_estimate(side[module, chosen].mean(axis=0)) for side in (base, target)]
    others = growth[:, chosen].sum(axis=0) - growth[module, chosen]
    ranks = [rank for rank, is_chosen in zip(after.ranks, chosen, strict=True) if is_chosen]
    return Growth(
        after.modules[module],
        tuple(ranks),
        sides[0].value,
        sides[1].value,
        subtract(sides[1], sides[0]),
        float(others.mean()),
        after.modules[module] in before.last | after.last,
    )


def _estimate(ns: Floats) -> Estimate:
    (found,) = estimate_ratios(ns[None, :], np.ones((1, len(ns))))
    return found


def _describe(case: Case, found: Growth, others: int, ranks: int) -> str:
    where = "on all ranks"
    if len(found.ranks) < ranks:
        listed = ", ".join(map(str, found.ranks))
        where = f"on {plural(len(found.ranks), 'rank')} ({listed}), which the others wait for"
    what = f"{safe_text(found.module)} computes"
    if found.is_last:
        what = f"{safe_text(found.module)} and what is computed after it take"
    return (
        f"{here(case.ledger)}{what} {duration(found.after_ns)} per step {where}, "
        f"against {duration(found.before_ns)} in the {other_side(case.ledger)}, by the collectives "
        f"around it; the other {plural(others, 'module')} together differ by "
        f"{duration(abs(found.others_ns))}"
    )
