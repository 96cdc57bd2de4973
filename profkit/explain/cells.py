"""The gap of two runs, divided into cells that add up, without any rule.

A cell is some time of a row: on which ranks, in which steps, spent how, and where. At each level
the rest is a cell of its own, so the cells of a tree add up to the gap to the nanosecond.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from profkit.explain.cell_steps import EVERY, Pattern, Steps, When, find_pattern
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger, rows_of_parts
from profkit.explain.policy import POLICY
from profkit.explain.rank_times import RankTimes, read_rank_times, waits_at_cause
from profkit.frame.costs import DATA, RunCosts
from profkit.frame.estimate import Z_95, Estimate, Floats, Ints, subtract

ALL_RANKS: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cell:
    """Time by which the target is longer, or shorter, in ns per sample and rank.

    `exact` is without rounding: those of a tree add up to the gap.
    """

    row: str
    delta: Estimate
    exact: Fraction
    ranks: tuple[int, ...] = ALL_RANKS
    """The ranks that lose it, which others may wait for; empty for all ranks."""
    steps: Steps = EVERY
    how: str = ""
    """How the time is spent; empty if nothing shows it."""
    is_blocked: bool = False
    """True if the job slept or waited for something that is no core."""
    where: str = ""
    """The place in the job's code, or the piece of work; empty if nothing shows it."""
    moved_ns: float = 0.0
    """The part that is other ranks' waiting for these."""
    is_rest: bool = False
    """True for what no finer cell of its level holds."""
    is_beyond: bool = False
    """True if its work was timed and takes longer than the slowest machine makes any work."""
    is_new: bool = False
    """True if only one run has long steps of this period, or nearly all of their time."""
    long: Ints | None = field(default=None, compare=False)
    """The numbers of the target's long steps; null if the cell is about all steps."""

    @property
    def ns(self) -> float:
        return self.delta.value

    @property
    def is_counted(self) -> bool:
        """True if the steps that are longer were counted, so that no mean is needed."""
        return self.steps.when in (When.PERIODIC, When.RARE)

    @property
    def is_sure(self) -> bool:
        low, high = self.delta.low, self.delta.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True)
class Cells:
    """All cells of a gap, the largest in its direction first."""

    all: tuple[Cell, ...]
    base_ns: float
    """The base's time per sample and rank."""
    step: float
    """The samples of a rank in a step of the base."""
    whole: Estimate
    """The gap, with an interval that knows which steps are longer than others."""

    def is_material(self, ns: float) -> bool:
        return abs(ns) >= POLICY.material_share * self.base_ns

    def told(self, *, gains: bool) -> Iterator[Cell]:
        """Yield the cells that are surely there and large enough, in one direction."""
        for cell in self.all:
            if (cell.ns < 0) == gains and cell.is_sure and self.is_material(cell.ns):
                yield cell


NO_CELLS = Cells((), 0.0, 1.0, Estimate(0.0))


class _Key(NamedTuple):
    """What a cell is about."""

    row: str
    ranks: tuple[int, ...]
    steps: Steps
    is_rest: bool
    long: Ints | None
    is_new: bool


@dataclass(frozen=True)
class _Piece:
    """A part of one side, by step and over all ranks, for each of several cells."""

    ns: Floats
    moved: Floats
    spread: float = 0.0
    """The standard error of the sum of long steps, as a share of it."""


def is_line(cell: Cell) -> bool:
    """Return true if the cell is at a line of the job's own code."""
    file, _, rest = cell.where.partition(":")
    return bool(file) and rest[:1].isdigit()


def divide_gap(ledger: Ledger, bases: Sequence[Evidence], targets: Sequence[Evidence]) -> Cells:
    """Return the cells of a gap. Their `how` and `where` are added by `locate`."""
    names = [row.name for row in ledger.rows]
    step, base_ns = ledger.samples_per_step, ledger.total.base.value
    if not (names and ledger.base.steps and ledger.target.steps):
        return Cells((), base_ns, step, ledger.total.delta)
    before = read_rank_times(bases, ledger.base, names)
    after = read_rank_times(targets, ledger.target, names)
    scales = []
    for costs in (ledger.base, ledger.target):
        scales.append(_samples(costs))
    before, after = (
        waits_at_cause(before, after, scales[0] / scales[1]),
        waits_at_cause(after, before, scales[1] / scales[0]),
    )
    keys: list[_Key] = []
    parts: list[tuple[_Piece, _Piece]] = []
    for row, name in enumerate(names):
        late = _late_ranks(ledger, before, after, row)
        for ranks in ([late] if late else []) + [ALL_RANKS]:
            sides = _of_ranks(before, row, ranks, late), _of_ranks(after, row, ranks, late)
            rhythms = _rhythms(bases, targets) if name == DATA else (0, 0)
            for steps, long, is_new, pair in _by_steps(before, after, *sides, rhythms):
                is_rest = ranks == ALL_RANKS and bool(late)
                keys.append(_Key(name, ranks, steps, is_rest, long, is_new))
                parts.append(pair)
    cells = tuple(_make_cells(ledger, keys, parts))
    sign = math.copysign(1.0, ledger.total.delta.value)
    ordered = tuple(sorted(cells, key=lambda cell: -sign * cell.ns))
    return Cells(ordered, base_ns, step, _whole(ledger, cells, keys, parts))


def _whole(
    ledger: Ledger,
    cells: Sequence[Cell],
    keys: Sequence[_Key],
    parts: Sequence[tuple[_Piece, _Piece]],
) -> Estimate:
    """Return the gap with an interval in which long steps count as they were counted.

    Usual steps scatter in all rows at once, so they are one series; long steps of one kind are the
    same in all rows. The interval over all steps stays if it is narrower.
    """
    delta = ledger.total.delta
    counted: dict[Steps, list[float]] = {}
    usual: list[list[Floats]] = [[], []]
    for cell, key, pair in zip(cells, keys, parts, strict=True):
        low, high = cell.delta.low, cell.delta.high
        if key.steps.when is When.ALL:
            for place, piece in enumerate(pair):
                usual[place].append(piece.ns)
        elif low is None or high is None:
            return delta
        else:
            halves = counted.setdefault(key.steps, [0.0, 0.0])
            halves[0], halves[1] = halves[0] + cell.ns - low, halves[1] + high - cell.ns
    if not counted or delta.low is None or delta.high is None:
        return delta
    sides = [{"": np.rint(np.sum(each, axis=0)).astype(np.int64)} for each in usual]
    rest = rows_of_parts(sides[0], sides[1], [""], ledger.base, ledger.target)[0].delta
    if rest.low is None or rest.high is None:
        return delta
    below = math.hypot(rest.value - rest.low, *(halves[0] for halves in counted.values()))
    above = math.hypot(rest.high - rest.value, *(halves[1] for halves in counted.values()))
    if below + above >= delta.high - delta.low:
        return delta
    return Estimate(delta.value, delta.value - below, delta.value + above, delta.level)


def _samples(costs: RunCosts) -> float:
    """Return the samples of a rank per step."""
    return max(1e-9, float(costs.samples.sum()) / max(1, costs.steps * costs.ranks))


def _late_ranks(ledger: Ledger, before: RankTimes, after: RankTimes, row: int) -> tuple[int, ...]:
    """Return the ranks that lose more in a row than the others do, by more than chance."""
    ranks = after.ranks
    if len(ranks) < 2:
        return ()
    factor, known = _samples(ledger.target), _samples(ledger.base)
    grown = after.ns[row].mean(axis=1) / factor
    errors = _errors(after.ns[row]) / factor
    if before.ranks == ranks:
        grown = grown - before.ns[row].mean(axis=1) / known
        errors = np.hypot(errors, _errors(before.ns[row]) / known)
    usual = _usual(grown)
    over = grown - usual
    worst = float(np.abs(over).max())
    # A rank's time is a part of the mean over the ranks.
    if worst / len(ranks) < POLICY.shown_share * ledger.total.base.value:
        return ()
    sign = math.copysign(1.0, over[int(np.argmax(np.abs(over)))])
    chosen = sign * over >= POLICY.late_share_of_worst * worst
    chosen &= np.abs(over) > POLICY.sure_errors * errors
    if not chosen.any() or chosen.sum() > len(ranks) / 2:
        return ()
    if before.ranks == ranks and abs(grown.sum()) < POLICY.place_share * abs(over[chosen].sum()):
        return ()  # as much as another rank lost before
    return tuple(rank for rank, is_late in zip(ranks, chosen, strict=True) if is_late)


def _usual(grown: Floats) -> float:
    """Return the growth that most ranks share; of two candidates, the one closer to none."""
    ordered = np.sort(grown)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(min(middle, key=abs))


def _errors(ns: Floats) -> Floats:
    """Return the standard error of each rank's difference from the others' median."""
    over = ns - np.median(ns, axis=0)
    return np.asarray(over.std(axis=1) / math.sqrt(max(1, ns.shape[1])))


def _of_ranks(side: RankTimes, row: int, ranks: tuple[int, ...], late: tuple[int, ...]) -> _Piece:
    """Return what the late ranks take beyond the others, or all ranks if these were no later."""
    ns, moved = side.ns[row], side.moved[row]
    places = [side.ranks.index(rank) for rank in late if rank in side.ranks]
    others = [place for place in range(side.count) if place not in places]
    excess, waits = np.zeros(ns.shape[1]), np.zeros(ns.shape[1])
    if places and others:
        usual = np.median(ns[others], axis=0)
        excess = ns[places].sum(axis=0) - len(places) * usual
        waits = moved[places].sum(axis=0)
    if ranks:
        return _Piece(np.rint(excess), waits)
    return _Piece(ns.sum(axis=0) - np.rint(excess), moved.sum(axis=0) - waits)


def _rhythms(*sides: Sequence[Evidence]) -> tuple[int, ...]:
    """Return each side's workers. Batches come in bursts of so many if they are waited for."""
    found = []
    for runs in sides:
        loader = runs[0].loader
        found.append(0 if loader is None else loader.workers)
    return tuple(found)


def _by_steps(
    before: RankTimes,
    after: RankTimes,
    base: _Piece,
    target: _Piece,
    rhythms: tuple[int, ...],
) -> Iterator[tuple[Steps, Ints | None, bool, tuple[_Piece, _Piece]]]:
    """Yield the steps of each kind with both sides' part of the time, then the others.

    Of long steps of a period it is said if one side alone has them.

    Steps with a period of `rhythms` are no kind.
    """
    found: dict[When, list[Pattern | None]] = {}
    for place, (side, piece) in enumerate(((before, base), (after, target))):
        per_rank = piece.ns / side.count
        pattern = None
        # Below zero, a row of a device's clock has time of other steps, which have it back.
        owed_ns = -float(np.median(per_rank)) if side.runs else math.inf
        if owed_ns <= POLICY.shown_share * side.step_ns:
            pattern = find_pattern(per_rank, side.steps, side.step_ns, is_one_run=side.runs == 1)
        if pattern is not None and pattern.steps.period != (rhythms[place] or -1):
            found.setdefault(pattern.steps.kind, [None, None])[place] = pattern
    for known, now in found.values():
        pair = _excess(base, known, before.count), _excess(target, now, after.count)
        chosen = now or known
        means = pair[0].ns.mean() / before.count, pair[1].ns.mean() / after.count
        if known is not None and means[0] > means[1]:
            chosen = known
        if chosen is None:
            continue
        base = _Piece(base.ns - pair[0].ns, base.moved - pair[0].moved)
        target = _Piece(target.ns - pair[1].ns, target.moved - pair[1].moved)
        long = after.steps[now.is_long] if now is not None else np.zeros(0, dtype=np.int64)
        yield chosen.steps, long, _is_new(known, now, means), pair
    yield EVERY, None, False, (base, target)


def _is_new(known: Pattern | None, now: Pattern | None, means: tuple[float, float]) -> bool:
    """Return true if no slow machine makes the long steps of one side those of the other."""
    periods = {each.steps.period for each in (known, now) if each is not None}
    has_other_period = len(periods) > 1 and 0 not in periods
    return has_other_period or max(means) > POLICY.most_slowdown * min(means)


def _excess(piece: _Piece, pattern: Pattern | None, ranks: int) -> _Piece:
    if pattern is None:
        return _Piece(np.zeros_like(piece.ns), np.zeros_like(piece.moved))
    whole = np.rint(pattern.excess * ranks)
    share = np.divide(whole, piece.ns, out=np.zeros_like(whole), where=piece.ns > 0)
    return _Piece(whole, piece.moved * np.clip(share, 0.0, 1.0), _spread(pattern.steps))


def _spread(steps: Steps) -> float:
    """Return the standard error of a sum of long steps, as a share of it.

    A mean over all steps would have to find out how often they come; they were counted. The number
    of rare ones is as uncertain as its root, and that of a period follows from it. A level or a
    slope is as uncertain as its test allows.
    """
    count = max(1, steps.long)
    by_kind = {When.PERIODIC: count, When.RARE: math.sqrt(count)}
    return 1 / by_kind.get(steps.when, POLICY.level_errors)


def _make_cells(
    ledger: Ledger,
    keys: Sequence[_Key],
    parts: Sequence[tuple[_Piece, _Piece]],
) -> Iterator[Cell]:
    """Yield the cells, whose rounding is made up for by the largest: their sum is exact."""
    names = []
    for number in range(len(keys)):
        names.append(str(number))
    sides: list[dict[str, Ints]] = []
    for place, costs in enumerate((ledger.base, ledger.target)):
        whole = np.rint([pair[place].ns for pair in parts]).astype(np.int64)
        largest = int(np.argmax(np.abs(whole).sum(axis=1)))
        whole[largest, 0] += int(costs.wall_ns.sum()) - int(whole.sum())
        sides.append(dict(zip(names, whole, strict=True)))
    rows = rows_of_parts(sides[0], sides[1], names, ledger.base, ledger.target)
    samples = max(1, int(ledger.base.samples.sum())), max(1, int(ledger.target.samples.sum()))
    for key, (base, target), row in zip(keys, parts, rows, strict=True):
        delta, steps = row.delta, key.steps
        sums = float(base.ns.sum()) / samples[0], float(target.ns.sum()) / samples[1]
        if steps.when is not When.ALL:
            half = Z_95 * math.hypot(sums[0] * base.spread, sums[1] * target.spread)
            delta = Estimate(delta.value, delta.value - half, delta.value + half, delta.level)
        moved = float(target.moved.sum()) / samples[1] - float(base.moved.sum()) / samples[0]
        yield Cell(
            key.row,
            delta,
            row.exact,
            key.ranks,
            steps,
            moved_ns=moved,
            is_rest=key.is_rest,
            is_new=key.is_new,
            long=key.long,
        )


def sum_of(cells: Sequence[Cell]) -> Estimate:
    """Return the sum of some cells, whose deviations add up as squares."""
    value = math.fsum(cell.ns for cell in cells)
    below = above = 0.0
    for cell in cells:
        low, high = cell.delta.low, cell.delta.high
        if low is None or high is None:
            return Estimate(value)
        below, above = math.hypot(below, cell.ns - low), math.hypot(above, high - cell.ns)
    return Estimate(value, value - below, value + above)


def refine(cell: Cell, ns: float, **changes: object) -> tuple[Cell, ...]:
    """Divide a cell into a finer one of so many ns, and the rest if there is any."""
    share = ns / (cell.ns or math.inf)
    if share >= 1 - POLICY.shown_share or not share > 0:
        return (dataclasses.replace(cell, **changes),)  # type: ignore[arg-type]
    part = cell.exact * Fraction(share)
    inner = dataclasses.replace(cell, delta=_scaled(cell.delta, share), exact=part)
    inner = dataclasses.replace(inner, **changes)  # type: ignore[arg-type]
    left = dataclasses.replace(
        cell, delta=_scaled(cell.delta, 1 - share), exact=cell.exact - part, is_rest=True
    )
    return inner, left


def split(cell: Cell, part: Estimate, **changes: object) -> tuple[Cell, Cell]:
    """Divide a cell into a part that was measured by itself, and the rest."""
    exact = Fraction(part.value)
    inner = dataclasses.replace(cell, delta=part, exact=exact)
    rest = dataclasses.replace(
        cell, delta=subtract(cell.delta, part), exact=cell.exact - exact, is_rest=True
    )
    return dataclasses.replace(inner, **changes), rest  # type: ignore[arg-type]


def _scaled(delta: Estimate, share: float) -> Estimate:
    if delta.low is None or delta.high is None:
        return Estimate(delta.value * share)
    return Estimate(delta.value * share, delta.low * share, delta.high * share, delta.level)
