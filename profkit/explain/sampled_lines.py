"""Functions of the job's own code that surely take longer, by samples alone.

Samples show how much of a row each function takes. A machine that is slower, or busy, makes all of
them take longer by some factor. One that takes more than that is the job's change, although the
steps of both runs may scatter by as much. Waits for the disk are left out, and so are those for a
core that the whole run has more of.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from profkit.analysis.doing import COMPUTING, DISK_WORDS, NO_CORE
from profkit.explain.cell_how import Doings, Sides, host_samples, waits_for_workers
from profkit.explain.cell_samples import NO_FUNCTION, Chosen, Function, Waits
from profkit.explain.cells import Cell, Cells
from profkit.explain.policy import POLICY
from profkit.frame.estimate import Z_95, Estimate, Ints, binomial_bound, negate
from profkit.frame.phases import UNKNOWN
from profkit.vocab import PHASES, Phase

ROWS = {*PHASES, UNKNOWN} - {Phase.ALLREDUCE.value}
"""The rows in which the thread that trains does not wait for other ranks."""


LEAST_RUNNING = 0.01
"""A thread that computes at all has a core for this share of the time."""


class Added(NamedTuple):
    """What was added at a line, in the unit of the cell."""

    line: str
    delta: Estimate
    doings: Doings
    is_beyond: bool
    """True if no slow machine makes so much of it."""


class _Side(NamedTuple):
    """The samples of a row of one run, with ns of a step of the base's batch."""

    chosen: Chosen
    scale: float
    spent: Mapping[Function, Mapping[str, float]]
    waits: Waits
    """Those of the whole run."""

    @property
    def hit_ns(self) -> float:
        return self.chosen.phase_ns * self.scale / max(1, len(self.chosen.weight))

    def own_ns(self, function: Function, stretch: float = 1.0) -> Doings:
        """Return what the function took, by what the thread did, without waits for the disk.

        What it computes is stretched by waits for a core.
        """
        found: dict[str, float] = {}
        for words, ns in self.spent.get(function, {}).items():
            if words in (COMPUTING, NO_CORE):
                found[COMPUTING] = found.get(COMPUTING, 0.0) + ns * self.scale * stretch
            elif not any(disk in words for disk in DISK_WORDS):
                found[words] = ns * self.scale
        return found

    def hits(self, function: Function, *, with_waits: bool = True) -> float:
        """Return the samples of that, with those of waits for a core or without."""
        ns = sum(self.own_ns(function).values())
        if not with_waits:
            ns -= self.spent.get(function, {}).get(NO_CORE, 0.0) * self.scale
        return ns / (self.hit_ns or 1.0)

    def stretch_to(self, other: _Side) -> float:
        """Return how much longer the same work takes in another run, by waits for a core."""
        if not (self.waits.samples and other.waits.samples):
            return 1.0
        return (1 - self.waits.share) / max(LEAST_RUNNING, 1 - other.waits.share)


def find_lines(cells: Cells, sides: Sides, told: Collection[int]) -> Mapping[int, Sequence[Added]]:
    """Return the functions that surely take longer, by the id of the cell that holds them.

    What appears in one place while as much disappears in others has another name, or lies elsewhere
    now: only the share that is left counts. A cell that is `told` has a line for most of it, so
    only what no machine makes is taken out of it.
    """
    pairs: dict[int, tuple[_Side, _Side]] = {}
    sums = [0.0, 0.0]
    for cell in cells.all:
        pair = _read(cell, cells, sides)
        if pair is not None:
            pairs[id(cell)] = pair
            for function in {*pair[0].spent, *pair[1].spent}:
                was = sum(pair[0].own_ns(function, pair[0].stretch_to(pair[1])).values())
                now = sum(pair[1].own_ns(function).values())
                sums[now < was] += abs(now - was)
    sign = 1.0 if sums[0] >= sums[1] else -1.0
    kept = 1 - min(sums) / (max(sums) or 1.0)
    if kept < POLICY.place_share:
        return {}
    found: dict[int, list[Added]] = {}
    least_ns = POLICY.material_share * sides.ledger.total.base.value
    for cell in cells.all:
        if id(cell) not in pairs:
            continue
        usual, mine = pairs[id(cell)][:: int(sign)]
        ratio = POLICY.most_slowdown if id(cell) in told else POLICY.more_ratio
        for added in _longer(usual, mine, kept / sides.rank_factor(cell), ratio):
            delta = added.delta
            if delta.value >= least_ns:
                each = added._replace(delta=negate(delta)) if sign < 0 else added
                found.setdefault(id(cell), []).append(each)
    return found


def _read(cell: Cell, cells: Cells, sides: Sides) -> tuple[_Side, _Side] | None:
    """Return the samples of both sides of a cell that is about all ranks and the usual steps."""
    is_whole = not cell.ranks and not cell.is_rest and cell.long is None
    long = _long_steps(cells, cell.row)
    is_of_thread = cell.row in ROWS and not waits_for_workers(cell, sides)
    if long is None or not is_whole or not is_of_thread:
        return None
    found = []
    for run, scale, apart in (
        (sides.before, 0, None),
        (sides.after, 1, long if len(long) else None),
    ):
        samples = host_samples(cell, sides, run)
        chosen = None if samples is None else samples.select(cell.row, (), apart, others=True)
        if samples is None or chosen is None or not len(chosen.weight) or not chosen.phase_ns > 0:
            return None
        found.append(_Side(chosen, sides.scales[scale], chosen.by_function(), samples.waits))
    return found[0], found[1]


def _long_steps(cells: Cells, row: str) -> Ints | None:
    """Return the target's steps that are longer in a row; `None` if those of the base are."""
    found = [np.zeros(0, dtype=np.int64)]
    for cell in cells.all:
        if cell.row == row and cell.long is not None:
            if not len(cell.long):
                return None
            found.append(cell.long)
    return np.unique(np.concatenate(found))


def _longer(usual: _Side, mine: _Side, factor: float, ratio: float) -> Iterator[Added]:
    """Yield the functions that surely take `ratio` times as long, with ns times a factor."""
    stretch = usual.stretch_to(mine)
    for function in mine.spent:
        hits, known = mine.hits(function), usual.hits(function)
        if function == NO_FUNCTION or hits < POLICY.fewest_samples:
            continue
        hit_ratio = usual.hit_ns / mine.hit_ns
        if not _surely_longer(hits, known, ratio * stretch * hit_ratio):
            continue
        now, was = mine.own_ns(function), usual.own_ns(function, stretch)
        grown = {}
        for words in {*now, *was}:
            grown[words] = (now.get(words, 0.0) - was.get(words, 0.0)) * factor
        errors = mine.hit_ns * math.sqrt(hits), usual.hit_ns * stretch * math.sqrt(known)
        half = Z_95 * math.hypot(*errors)
        value, half = math.fsum(grown.values()), half * factor
        delta = Estimate(value, max(0.0, value - half), value + half)
        # Others may take the cores just while a function runs: waits are no proof.
        own, usual_own = (side.hits(function, with_waits=False) for side in (mine, usual))
        is_beyond = _surely_longer(own, usual_own, POLICY.most_slowdown * hit_ratio)
        yield Added(mine.chosen.words(function), delta, grown, is_beyond)


def _surely_longer(hits: float, known: float, ratio: float) -> bool:
    """Return true if there are surely more than `ratio` times as many samples as were known."""
    if not hits > 0:
        return False
    return binomial_bound(hits, known, ratio / (1 + ratio)) <= 1 - POLICY.certain
