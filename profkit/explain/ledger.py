"""The gap between two runs, in rows that add up.

Every row is time per sample per GPU, by what the run worked on or waited for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb

import numpy as np

from profkit.analysis import run_noise
from profkit.analysis.config_join import Difference
from profkit.explain.noise import probability
from profkit.explain.policy import POLICY
from profkit.explain.resolution import at_one_resolution, unlike_clocks
from profkit.explain.verdict import INDECISIVE, Between, Evident, Verdict, judge, more_repeats_words
from profkit.frame.costs import OWN, REST, RunCosts
from profkit.frame.estimate import FEWEST_STEPS, Estimate, Floats, Ints, divide, scale, subtract
from profkit.frame.phases import UNKNOWN
from profkit.notebook import ShownInNotebook
from profkit.text import duration, percent, plural
from profkit.vocab import PHASES

__all__ = ["INDECISIVE", "TOTAL", "Ledger", "Row", "Verdict", "compare", "judge", "sum_rows"]

TOTAL = "total"
"""The name of the row that all others add up to."""

_ORDER = (*PHASES, REST, OWN, UNKNOWN)
"""The rows of a ledger, in the order in which they are shown."""


@dataclass(frozen=True)
class Row:
    """The cost of one thing on both sides, in ns per sample per GPU.

    `exact` is the difference without rounding.
    """

    name: str
    base: Estimate
    target: Estimate
    delta: Estimate
    exact: Fraction
    inside: tuple[Row, ...] = ()
    sums: tuple[str, ...] = ()
    """The rows of the ledger that this one sums up, if it is none of them."""


@dataclass(frozen=True)
class Ledger(ShownInNotebook):
    """Two runs compared. The `exact` differences of the rows add up to that of `total`."""

    base: RunCosts
    target: RunCosts
    total: Row
    rows: tuple[Row, ...]
    beside: tuple[Row, ...]
    """Time that overlapped with the step's own work; it is part of no sum."""
    per_sample: bool
    """False if a run does not record its samples; then a step of one GPU stands for a sample."""

    unlike: tuple[str, ...] = ()
    """The reasons why the two runs are too unlike to judge."""

    differences: tuple[Difference, ...] = ()
    turned: bool = False
    """True if the two runs changed places (`profkit.explain.turned`)."""
    between: Between | None = None
    """The noise between runs; null if nobody asked for it."""
    unsure_rows: frozenset[str] = frozenset()
    """Rows that the machine may have changed as much, if the total has no sure change."""
    evident: Evident | None = None
    """What no machine makes, if the verdict follows from it."""

    @property
    def switched(self) -> Row | None:
        """The cost of profkit on both sides, from the control steps (recording off).

        It is part of all rows. `None` unless both sides have control steps.
        """
        base, target = _switched_per_sample(self.base), _switched_per_sample(self.target)
        if base is None or target is None:
            return None
        exact = Fraction(target.value) - Fraction(base.value)
        return Row(OWN, base, target, subtract(target, base), exact)

    @property
    def change(self) -> Estimate:
        """The change of time per sample, as a share of the base."""
        factor = 1 / self.total.base.value if self.total.base.value > 0 else math.nan
        return run_noise.keep_possible(scale(self.total.delta, factor), 1.0)

    @property
    def efficiency(self) -> Estimate:
        """Throughput per GPU of the target, as a share of the base's."""
        share, delta = divide(self.total.base, self.total.target), self.total.delta
        base = self.total.base.value
        if not self.has_repeats or delta.low is None or delta.high is None:
            return share
        if not base + delta.low > 0:
            return Estimate(share.value)
        # The interval of the difference knows that both sides meet the same noise.
        low, high = base / (base + delta.high), base / (base + delta.low)
        return Estimate(share.value, low, high, delta.level)

    @property
    def has_repeats(self) -> bool:
        return max(len(self.base.repeats), len(self.target.repeats)) > 1

    @property
    def steps_needed(self) -> tuple[int, int]:
        """The number of used steps that each side lacks for intervals."""
        return self.base.steps_needed, self.target.steps_needed

    @property
    def verdict(self) -> Verdict:
        if self.unlike:
            return Verdict.CANNOT_JUDGE
        is_more = self.total.delta.value > 0
        if self.evident:
            return Verdict.IMPROVEMENT if self.evident.is_gain else Verdict.REGRESSION
        if self.doubt:
            is_bounded = self.between is not None and self.between.machine_ns is not None
            if not is_bounded or (self.probability or 0.0) < POLICY.probable:
                return Verdict.CANNOT_JUDGE
            return Verdict.PROBABLE_REGRESSION if is_more else Verdict.PROBABLE_IMPROVEMENT
        return judge(self.total.delta, self.total.base.value)

    @property
    def probability(self) -> float | None:
        """How probable it is that the job changed, and not chance or the machine; null if unknown.

        What no machine makes is certain.
        """
        delta = self.total.delta
        if self.unlike or delta.low is None or delta.high is None:
            return None
        if self.evident:
            return 1.0
        machine_ns = 0.0
        if self.doubt and self.between is not None:
            if self.between.machine_ns is None:
                return None  # repeats of one side alone met a busier machine
            machine_ns = self.between.machine_ns
        return probability(delta.value, (delta.high - delta.low) / 2, machine_ns)

    @property
    def smallest_seen(self) -> float | None:
        """The smallest change that would have been certain, as a share; null if nothing says it."""
        delta, base = self.total.delta, self.total.base.value
        if delta.low is None or delta.high is None or not base > 0:
            return None
        machine_ns = 0.0
        if self.between:
            machine_ns = self.between.machine_ns or 0.0
        return math.hypot((delta.high - delta.low) / 2, machine_ns) / base

    @property
    def doubt(self) -> str:
        """The reason to suspect the machine behind the change; empty without one."""
        return self.between.doubt if self.between and not self.evident else ""

    @property
    def what_helps(self) -> str:
        """The remedy for a wide interval."""
        if not self.has_repeats:
            return "more steps are needed"
        runs = min(len(self.base.repeats), len(self.target.repeats))
        return more_repeats_words(self.total.delta, runs)

    def verdict_of(self, row: Row) -> Verdict:
        """Judge a row, or the total.

        If the machine may be behind the change, only what it cannot change is sure.
        """
        found = judge(row.delta, self.total.base.value)
        carried = self.between.carried_by if self.between else ()
        is_doubtful = bool(self.doubt) and row.name not in carried
        if found is not Verdict.NEUTRAL and (is_doubtful or row.name in self.unsure_rows):
            return Verdict.CANNOT_JUDGE
        return found

    @property
    def changed_rows(self) -> frozenset[str]:
        """The rows that surely changed, one way or the other."""
        sure = (Verdict.REGRESSION, Verdict.IMPROVEMENT)
        return frozenset(row.name for row in self.rows if self.verdict_of(row) in sure)

    @property
    def samples_per_step(self) -> float:
        """Samples that one GPU of the base trains on per step; 1 if that is not known.

        If the base has no used steps, they are the target's.
        """
        sides = (self.target, self.base) if self.turned else (self.base, self.target)
        side = sides[0] if sides[0].steps else sides[1]
        if not (self.per_sample and side.steps):
            return 1.0
        return float(side.samples.sum()) / (side.steps * side.ranks)

    def batch_factor(self, step_samples: float) -> float:
        """Return the factor from a step of so many samples to one of the base's batch."""
        if self.per_sample and step_samples:
            return self.samples_per_step / step_samples
        return 1.0

    @property
    def largest(self) -> Row | None:
        """The row that adds most to the gap, even if its interval contains zero."""
        sign = 1 if self.total.delta.value > 0 else -1
        return max(self.rows, key=lambda row: sign * row.delta.value, default=None)

    def find(self, name: str) -> Row | None:
        """Return the row of this name, or `None` if the ledger has no such row."""
        return next((row for row in self.rows if row.name == name), None)


def compare(
    base: RunCosts,
    target: RunCosts,
    *,
    unlike: Iterable[str] = (),
    differences: Iterable[Difference] = (),
) -> Ledger:
    """Return the ledger of two runs, in the finest rows that both of them support."""
    per_sample = base.samples_known and target.samples_known
    if not per_sample:
        base, target = base.per_step(), target.per_step()
    clocks = unlike_clocks(base, target)
    base, target = at_one_resolution(base, target)
    names = [name for name in _ORDER if name in base.parts or name in target.parts]
    ns = {TOTAL: base.wall_ns, **base.parts}, {TOTAL: target.wall_ns, **target.parts}
    total, *rows = rows_of_parts(*ns, [TOTAL, *names], base, target)
    hidden = sorted({*base.beside, *target.beside} - base.not_beside - target.not_beside)
    return Ledger(
        base,
        target,
        total,
        tuple(_open(row, base, target) for row in rows),
        tuple(rows_of_parts(base.beside, target.beside, hidden, base, target)),
        per_sample,
        (*unlike, *filter(None, [clocks])),
        tuple(differences),
    )


def sum_rows(ledger: Ledger, name: str, names: Sequence[str]) -> Row:
    """Return several rows as one, with an interval that knows that they vary together."""
    base, target = np.zeros_like(ledger.base.wall_ns), np.zeros_like(ledger.target.wall_ns)
    for each in names:
        base = base + ledger.base.parts.get(each, 0)
        target = target + ledger.target.parts.get(each, 0)
    (row,) = rows_of_parts({name: base}, {name: target}, [name], ledger.base, ledger.target)
    return dataclasses.replace(row, sums=tuple(names))


def _open(row: Row, base: RunCosts, target: RunCosts) -> Row:
    """Return the row with its finer parts, if each side has them or lacks the row altogether."""
    before, after = base.inside.get(row.name), target.inside.get(row.name)
    if not before and not after:
        return row
    if (not before and row.name in base.parts) or (not after and row.name in target.parts):
        return row
    before, after = before or {}, after or {}
    found = rows_of_parts(before, after, list({**before, **after}), base, target)
    parts = [part for part in found if part.base.value or part.target.value]
    return dataclasses.replace(row, inside=tuple(parts))


def rows_of_parts(
    base_ns: Mapping[str, Ints],
    target_ns: Mapping[str, Ints],
    names: Sequence[str],
    base: RunCosts,
    target: RunCosts,
) -> list[Row]:
    """Return a row for each name, from each side's time per step."""
    if not names:
        return []
    rows, rounds = [], run_noise.find_rounds(base.began_ns, target.began_ns)
    lefts = run_noise.times_per_sample(base_ns, names, base)
    rights = run_noise.times_per_sample(target_ns, names, target)
    for place, name in enumerate(names):
        left, right = lefts.within[place], rights.within[place]
        exact = _exact(target_ns.get(name), target) - _exact(base_ns.get(name), base)
        delta = run_noise.difference(left, right)
        if min(base.steps, target.steps) < FEWEST_STEPS:
            steps = each_step(base_ns.get(name), base), each_step(target_ns.get(name), target)
            delta = exact_difference(*steps, delta.value)
        if is_rare(base_ns.get(name), base) or is_rare(target_ns.get(name), target):
            delta = Estimate(delta.value)
        runs = lefts.runs[place], rights.runs[place]
        delta = run_noise.widen_difference(delta, *runs, base_value=left.value, rounds=rounds)
        delta = run_noise.keep_possible(delta, left.value, base_ns.get(name), target_ns.get(name))
        rows.append(Row(name, lefts.widened[place], rights.widened[place], delta, exact))
    return rows


def _switched_per_sample(costs: RunCosts) -> Estimate | None:
    samples = int(costs.samples.sum())
    if not costs.switched or samples <= 0:
        return None
    return scale(costs.switched, costs.steps * costs.ranks / samples)


def _exact(part: Ints | None, costs: RunCosts) -> Fraction:
    samples = int(costs.samples.sum())
    return Fraction(int(part.sum()), samples) if part is not None and samples else Fraction(0)


def why_not(ledger: Ledger) -> str:
    """Return why there is no verdict and what would give one, or nothing if there is one."""
    if reason := why_not_at_all(ledger):
        return reason
    if ledger.doubt:
        return ledger.doubt
    change = ledger.change
    if ledger.verdict is not Verdict.CANNOT_JUDGE or change.low is None or change.high is None:
        return ""
    return (
        f"the interval contains zero and reaches from {percent(change.low)} to "
        f"{percent(change.high)}, so the change may be nothing or much: {ledger.what_helps}"
    )


TOO_ALIKE = "too few lines of a log state different times to give an interval"


def why_not_at_all(ledger: Ledger) -> str:
    """Return why no question about the two runs can be answered, or nothing if some can."""
    if ledger.unlike:
        return "; ".join(ledger.unlike)
    if ledger.total.base.value > 0 and ledger.total.delta.low is not None:
        return ""
    if not any(ledger.steps_needed):
        if ledger.total.base.value > 0:
            return TOO_ALIKE
        return "the used steps took no time at all"
    return plain_difference(ledger.base, ledger.target)


# Differences of runs that have too few steps for a bootstrap, by an exact test.
#
# If two runs are alike, any order of their steps by length is as likely as any other (the test of
# Mann, Whitney and Wilcoxon). So the differences between single steps give an interval for the
# shift whose confidence follows from counting orders. Three steps on each side allow 90 %, four 95
# %.
USUAL_RISK = 0.05
FEWEST = 3
"""With fewer steps on a side there is no interval: any order of them is likely enough."""

_MOST_STEPS = 24
"""More steps of the longer side are thinned out: counting orders takes long."""


def exact_difference(base: Floats, target: Floats, value: float) -> Estimate:
    """Return `value`, the difference of two sides, with an interval from their single steps.

    There is none if the steps are too few.
    """
    base, target = _thin(base), _thin(target)
    known = np.isfinite(base).all() and np.isfinite(target).all()
    if not known or min(len(base), len(target)) < FEWEST:
        return Estimate(value)
    skipped, risk = choose_order(len(base), len(target))
    if np.array_equal(np.sort(base), np.sort(target)):
        # Equal to the nanosecond: copies of one measurement, which differ by nothing.
        return Estimate(value, min(0.0, value), max(0.0, value), level=1 - risk)
    differences = np.sort((target[:, None] - base[None, :]).ravel())
    low, high = float(differences[skipped]), float(differences[-1 - skipped])
    # The sums that `value` comes from weigh a long step more than its rank does, so it can be
    # outside. Then the interval around it, which is as wide as that of the ranks, counts as well.
    moved = value - float(np.median(differences))
    if not low < value < high:
        low, high = min(low, low + moved), max(high, high + moved)
    return Estimate(value, min(low, value), max(high, value), level=1 - risk)


def each_step(ns: Ints | None, costs: RunCosts) -> Floats:
    """Return the time per sample per GPU in each step; NaN in steps without samples.

    The steps of one line of a log are one figure, so they count once.
    """
    if ns is None:
        ns = np.zeros(costs.steps, dtype=np.int64)
    unknown = np.full(costs.steps, np.nan)
    times = np.asarray(np.divide(ns, costs.samples, out=unknown, where=costs.samples > 0))
    if not costs.of_lines:
        return times
    rounding_ns = 2 * costs.ranks
    is_first = np.abs(np.diff(costs.wall_ns, prepend=-rounding_ns - 1)) > rounding_ns
    return times[is_first]


def is_rare(ns: Ints | None, costs: RunCosts) -> bool:
    """Return true if too few lines of a log hold a part, such as one checkpoint, to repeat it."""
    if ns is None or not costs.of_lines:
        return False
    return 0 < int((each_step(ns, costs) > 0).sum()) < FEWEST


def plain_difference(base: RunCosts, target: RunCosts) -> str:
    """Say that there are too few steps for a test, and how long they are."""
    sides = []
    for side, costs in (("base", base), ("target", target)):
        words = f"the {side} has {plural(costs.steps, 'used step')}"
        if costs.steps > 1:
            lengths = costs.wall_ns / costs.ranks
            words += f" of {duration(lengths.min())} to {duration(lengths.max())}"
        sides.append(words)
    return (
        f"{' and '.join(sides)}, so this is a plain before and after: a test takes {FEWEST} steps "
        f"on each side, and an interval of 95 % {FEWEST_STEPS}"
    )


def _thin(values: Floats) -> Floats:
    if len(values) <= _MOST_STEPS:
        return values
    chosen = np.linspace(0, len(values) - 1, _MOST_STEPS).round().astype(np.int64)
    return np.asarray(values[chosen])


@lru_cache(maxsize=1_024)
def choose_order(base: int, target: int) -> tuple[int, float]:
    """Return how many differences to skip at each end, and the chance to miss the true shift."""
    orders = comb(base + target, base)
    counts = _count_orders(base, target)
    skipped, tail = 0, counts[0]
    while 2 * (tail + counts[skipped + 1]) <= USUAL_RISK * orders:
        skipped += 1
        tail += counts[skipped]
    return skipped, 2 * tail / orders


def _count_orders(base: int, target: int) -> list[int]:
    """Return in how many orders each number of pairs has its target step first.

    The counts are the coefficients of the Gaussian binomial.
    """
    counts = [1] + [0] * (base * target)
    for grown in range(1, base + 1):
        # Multiply by (1 - q^(target + grown)) and divide by (1 - q^grown).
        for place in range(len(counts) - 1, target + grown - 1, -1):
            counts[place] -= counts[place - target - grown]
        for place in range(grown, len(counts)):
            counts[place] += counts[place - grown]
    return counts
