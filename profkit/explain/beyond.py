"""Functions of the job's own code that take longer than a slow machine makes any work.

Samples show how much of a row each function takes. A machine that is slower, or busy, makes all of
them take longer by some factor. One that takes more than that is the job's change, although the
steps of both runs may scatter by as much. Waits for a core and for the disk are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from profkit.analysis.doing import DISK_WORDS, NO_CORE
from profkit.explain.cell_how import Doings, Sides, host_samples, waits_for_workers
from profkit.explain.cell_samples import NO_FUNCTION, Chosen, Function
from profkit.explain.cells import Cell
from profkit.explain.policy import POLICY
from profkit.frame.estimate import Z_95, Estimate, Ints, binomial_bound
from profkit.frame.phases import UNKNOWN
from profkit.vocab import PHASES, Phase

ROWS = {*PHASES, UNKNOWN} - {Phase.ALLREDUCE.value}
"""The rows in which the thread that trains does not wait for other ranks."""


class Beyond(NamedTuple):
    """What was added at a line, in the unit of the cell."""

    line: str
    delta: Estimate
    doings: Doings


class _Side(NamedTuple):
    """The samples of a row of one run, with ns of a step of the base's batch."""

    chosen: Chosen
    scale: float
    spent: Mapping[Function, Mapping[str, float]]

    @property
    def hit_ns(self) -> float:
        return self.chosen.phase_ns * self.scale / max(1, len(self.chosen.weight))

    def awake_ns(self, function: Function) -> Doings:
        """Return what the function took, by what the thread did, without what others may make."""
        found = {}
        for words, ns in self.spent.get(function, {}).items():
            if words != NO_CORE and not any(disk in words for disk in DISK_WORDS):
                found[words] = ns * self.scale
        return found


def find_beyond(cell: Cell, sides: Sides, long: Ints) -> Iterator[Beyond]:
    """Yield the functions by which a cell is longer, or shorter, than a machine makes it.

    What appears on one side while as much disappears is a new name, or lies elsewhere now. `long`
    are the target's steps whose excess is in other cells.
    """
    is_whole = not cell.ranks and not cell.is_rest and cell.long is None
    if not is_whole or cell.row not in ROWS or waits_for_workers(cell, sides):
        return
    pair = []
    steps = None, long if len(long) else None
    for run, scale, apart in zip((sides.before, sides.after), sides.scales, steps, strict=True):
        samples = host_samples(cell, sides, run)
        chosen = None if samples is None else samples.select(cell.row, (), apart, others=True)
        if chosen is None or not len(chosen.weight):
            return
        pair.append(_Side(chosen, scale, chosen.by_function()))
    before, after = pair
    more = [*_longer(before, after, sides.rank_factor(cell))]
    less = [*_longer(after, before, sides.rank_factor(cell))]
    of_more = math.fsum(each.delta.value for each in more)
    of_less = math.fsum(each.delta.value for each in less)
    if of_less > of_more:
        more, of_more, of_less = less, of_less, of_more
    kept = 1 - of_less / (of_more or math.inf)
    if kept < POLICY.place_share:
        return
    sign = -kept if more is less else kept
    for each in more:
        ends = sorted((sign * (each.delta.low or 0.0), sign * (each.delta.high or 0.0)))
        delta = Estimate(sign * each.delta.value, *ends)
        if abs(delta.value) >= POLICY.material_share * sides.ledger.total.base.value:
            yield each._replace(delta=delta)


def _longer(usual: _Side, mine: _Side, share: float) -> Iterator[Beyond]:
    for function in mine.spent:
        now, was = mine.awake_ns(function), usual.awake_ns(function)
        hits, known = sum(now.values()) / mine.hit_ns, sum(was.values()) / (usual.hit_ns or 1.0)
        slowest = POLICY.most_slowdown * usual.hit_ns
        by_chance = slowest / (slowest + mine.hit_ns)
        is_seen = function != NO_FUNCTION and hits >= POLICY.fewest_samples
        if not is_seen or binomial_bound(hits, known, by_chance) > 1 - POLICY.certain:
            continue
        grown = {
            words: (now.get(words, 0.0) - was.get(words, 0.0)) / share for words in {*now, *was}
        }
        half = Z_95 * math.hypot(mine.hit_ns * math.sqrt(hits), usual.hit_ns * math.sqrt(known))
        value, half = math.fsum(grown.values()), half / share
        delta = Estimate(value, max(0.0, value - half), value + half)
        yield Beyond(mine.chosen.words(function), delta, grown)
