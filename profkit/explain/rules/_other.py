"""The parts of the phase `other`, by the names of what was done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from profkit.explain.rules.base import Case, cost, in_time, is_material
from profkit.frame.estimate import Estimate, scale
from profkit.text import duration
from profkit.vocab import PIPELINE_BATCHES, PIPELINE_SCHEDULE, Phase

OF_PIPELINE = (PIPELINE_SCHEDULE, PIPELINE_BATCHES)


class Growth(NamedTuple):
    """How much longer some activities take, in ns per step of the base's batch."""

    cost_ns: Estimate
    before_ns: float
    after_ns: float

    def describe(self, case: Case) -> str:
        first, then = in_time(case.ledger, self.before_ns, self.after_ns)
        return f"from {duration(first)} to {duration(then)} per step"


def growth_of(case: Case, names: Iterable[str]) -> Growth | None:
    """Return the growth of these activities, or `None` if it is not certain or too small."""
    ledger, names = case.ledger, tuple(names)
    row = ledger.find(Phase.OTHER.value)
    sums = []
    for side in (case.before, case.after):
        factor = ledger.batch_factor(side.step_samples)
        sums.append(sum(side.other_ns.get(name, 0.0) for name in names) * factor)
    before, after = sums
    added = after - before
    if row is None or not is_material(added, ledger):
        return None
    whole = cost(row, ledger)
    price = Estimate(added)
    if whole.value > 0:
        price = scale(whole, added / whole.value)
    if price.low is not None and price.low <= 0:
        return None
    return Growth(price, before, after)
