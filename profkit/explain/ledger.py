"""The gap between two runs, in rows that add up: time per sample per GPU, and what the job was waiting for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np

from profkit.analysis.config_join import Difference
from profkit.analysis.costs import INPUT, OWN, REST, RunCosts
from profkit.analysis.estimate import (
    FEWEST_STEPS,
    NEGLIGIBLE,
    Estimate,
    Ints,
    divide,
    estimate_ratios,
    scale,
    subtract,
)
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.repeats import widen
from profkit.text import percent
from profkit.vocab import PHASES

TOTAL = "total"
_ORDER = (INPUT, *PHASES, REST, OWN, UNKNOWN)

INDECISIVE = 0.25
"""Where an interval holds zero and reaches this far from it, as a share of the base, nobody can say whether there is a difference that matters."""


class Verdict(str, Enum):
    """What a change of time per sample is."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NEUTRAL = "neutral"
    CANNOT_JUDGE = "cannot judge"


@dataclass(frozen=True)
class Row:
    """What one thing costs on both sides, in ns per sample per GPU. `exact` is the difference without rounding."""

    name: str
    base: Estimate
    target: Estimate
    delta: Estimate
    exact: Fraction
    inside: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """Two runs compared. The rows' `exact` differences add up to that of `total`."""

    base: RunCosts
    target: RunCosts
    total: Row
    rows: tuple[Row, ...]
    beside: tuple[Row, ...]
    per_sample: bool
    """False where a run does not say what it trained on: then a step of one GPU stands for a sample."""

    unlike: tuple[str, ...] = ()
    """What makes the two runs too unlike to judge."""

    differences: tuple[Difference, ...] = ()

    @property
    def switched(self) -> Row | None:
        """What profkit takes of both sides, by switching it off for blocks of steps: it lies in all rows. Null where not both sides tried."""
        base, target = map(_switched_per_sample, (self.base, self.target))
        return (
            Row(
                OWN,
                base,
                target,
                subtract(target, base),
                Fraction(target.value) - Fraction(base.value),
            )
            if base and target
            else None
        )

    @property
    def change(self) -> Estimate:
        """The change of time per sample, as a share of the base."""
        return scale(
            self.total.delta, 1 / self.total.base.value if self.total.base.value > 0 else math.nan
        )

    @property
    def efficiency(self) -> Estimate:
        """Throughput per GPU of the target, as a share of the base's."""
        return divide(self.total.base, self.total.target)

    @property
    def steps_needed(self) -> tuple[int, int]:
        """How many used steps more each side needs for intervals."""
        return self.base.steps_needed, self.target.steps_needed

    @property
    def verdict(self) -> Verdict:
        return (
            Verdict.CANNOT_JUDGE if self.unlike else judge(self.total.delta, self.total.base.value)
        )

    @property
    def samples_per_step(self) -> float:
        """Samples that one GPU of the base, or of the target where that has no steps, trains on in a step; 1 where that is not known."""
        side = self.base if self.base.steps else self.target
        return (
            float(side.samples.sum()) / (side.steps * side.ranks)
            if self.per_sample and side.steps
            else 1.0
        )

    @property
    def largest(self) -> Row | None:
        """The row that adds most to the gap, whether its interval holds zero or not."""
        sign = 1 if self.total.delta.value > 0 else -1
        return max(self.rows, key=lambda row: sign * row.delta.value, default=None)

    def find(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)


def judge(delta: Estimate, base: float) -> Verdict:
    """What a difference in time means. One whose interval holds zero is neutral, unless the interval is so wide that it says nothing."""
    if delta.low is None or delta.high is None or not base > 0:
        return Verdict.CANNOT_JUDGE
    if delta.low <= 0 <= delta.high:
        return (
            Verdict.NEUTRAL
            if max(-delta.low, delta.high) < INDECISIVE * base
            else Verdict.CANNOT_JUDGE
        )
    if abs(delta.value) < NEGLIGIBLE * base:
        return Verdict.NEUTRAL
    return Verdict.REGRESSION if delta.value > 0 else Verdict.IMPROVEMENT


def compare(
    base: RunCosts,
    target: RunCosts,
    *,
    unlike: Iterable[str] = (),
    differences: Iterable[Difference] = (),
) -> Ledger:
    """The ledger of two runs, in the finest rows that both of them support."""
    per_sample = base.samples_known and target.samples_known
    base, target = _at_one_resolution(
        *((base, target) if per_sample else (base.per_step(), target.per_step()))
    )
    names = [name for name in _ORDER if name in base.parts or name in target.parts]
    total, *rows = _rows(
        {TOTAL: base.wall_ns, **base.parts},
        {TOTAL: target.wall_ns, **target.parts},
        [TOTAL, *names],
        base,
        target,
    )
    opened = tuple(_open(row, base, target) for row in rows)
    beside = _rows(base.beside, target.beside, sorted({*base.beside, *target.beside}), base, target)
    return Ledger(
        base, target, total, opened, tuple(beside), per_sample, tuple(unlike), tuple(differences)
    )


def sum_rows(ledger: Ledger, name: str, names: Sequence[str]) -> Row:
    """Several of the ledger's rows as one, whose interval knows that they vary together."""
    base, target = (
        {
            name: sum(
                (side.parts[each] for each in names if each in side.parts),
                np.zeros_like(side.wall_ns),
            )
        }
        for side in (ledger.base, ledger.target)
    )
    return _rows(base, target, [name], ledger.base, ledger.target)[0]


def _at_one_resolution(base: RunCosts, target: RunCosts) -> tuple[RunCosts, RunCosts]:
    """Logs know no phases, and some not even the wait for data; null is not zero, so both sides get the coarser rows."""
    if all(side.knows_phases or not side.steps for side in (base, target)):
        return (
            (base, target)
            if all(OWN in side.parts for side in (base, target))
            else (base.without_own(), target.without_own())
        )
    if all(INPUT in side.parts for side in (base, target)):
        return base.without_phases(), target.without_phases()
    return base.of_wall_alone(), target.of_wall_alone()


def _open(row: Row, base: RunCosts, target: RunCosts) -> Row:
    """The row with its finer parts, where both sides know them or one has nothing there to know."""
    splits = [side.inside.get(row.name) for side in (base, target)]
    absent = [row.name not in side.parts for side in (base, target)]
    if not any(splits) or not all(
        split or missing for split, missing in zip(splits, absent, strict=True)
    ):
        return row
    names = list(dict.fromkeys(name for split in splits for name in split or ()))
    parts = _rows(splits[0] or {}, splits[1] or {}, names, base, target)
    return Row(
        row.name,
        row.base,
        row.target,
        row.delta,
        row.exact,
        tuple(part for part in parts if part.base.value or part.target.value),
    )


def _rows(
    base_ns: Mapping[str, Ints],
    target_ns: Mapping[str, Ints],
    names: Sequence[str],
    base: RunCosts,
    target: RunCosts,
) -> list[Row]:
    if not names:
        return []
    before, after = _per_sample(base_ns, names, base), _per_sample(target_ns, names, target)
    exact = (
        _exact(target_ns.get(name), target) - _exact(base_ns.get(name), base) for name in names
    )
    return [
        Row(name, left, right, subtract(right, left), gap)
        for name, left, right, gap in zip(names, before, after, exact, strict=True)
    ]


def _per_sample(parts: Mapping[str, Ints], names: Sequence[str], costs: RunCosts) -> list[Estimate]:
    if not costs.steps:
        return [Estimate(math.nan)] * len(names)
    nothing = np.zeros(costs.steps)
    stacked = np.stack([parts.get(name, nothing) for name in names]).astype(np.float64)
    samples = np.broadcast_to(costs.samples.astype(np.float64), stacked.shape)
    return widen(estimate_ratios(stacked, samples), stacked, samples, costs.repeats)


def _switched_per_sample(costs: RunCosts) -> Estimate | None:
    samples = int(costs.samples.sum())
    return (
        scale(costs.switched, costs.steps * costs.ranks / samples)
        if costs.switched and samples > 0
        else None
    )


def _exact(part: Ints | None, costs: RunCosts) -> Fraction:
    samples = int(costs.samples.sum())
    return Fraction(int(part.sum()), samples) if part is not None and samples else Fraction(0)


def why_not(ledger: Ledger) -> str:
    """Why there is no verdict, and what would give one; nothing where there is one."""
    if reason := why_not_at_all(ledger):
        return reason
    change = ledger.change
    if ledger.verdict is not Verdict.CANNOT_JUDGE or change.low is None or change.high is None:
        return ""
    return f"the interval holds zero and reaches from {percent(change.low)} to {percent(change.high)}, which may be nothing or much: more steps are needed"


def why_not_at_all(ledger: Ledger) -> str:
    """What keeps any question about the two runs from being answered; nothing where only some cannot be."""
    if ledger.unlike:
        return "; ".join(ledger.unlike)
    needs = [
        f"{side} needs {need} more used steps"
        for side, need in zip(("the base", "the target"), ledger.steps_needed, strict=True)
        if need
    ]
    if needs:
        return f"intervals take {FEWEST_STEPS} steps: " + ", ".join(needs)
    return (
        ""
        if ledger.total.base.value > 0 and ledger.total.delta.low is not None
        else "the steps that are used took no time at all"
    )
