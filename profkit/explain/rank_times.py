"""The time of each rank in each row and step, with waits for another rank at their cause.

What one rank takes longer, others wait for in the exchange. Such a wait is moved to the row in
which the rank was late, so that one loss is one thing. Nothing is added or taken away by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profkit.explain.evidence import Evidence
from profkit.frame.costs import INPUT, OWN, REST, RunCosts
from profkit.frame.estimate import Floats, Ints
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.vocab import PHASES, Phase

EXCHANGE = Phase.ALLREDUCE.value

_REMAINDERS = (UNKNOWN, REST)
"""The row that is the wall time less all others."""


@dataclass(frozen=True)
class RankTimes:
    """One side: ns by (row, rank, step), in the steps of all its repeats one after the other."""

    names: tuple[str, ...]
    ns: Floats
    ranks: tuple[int, ...]
    """The ranks; empty if nothing is known of single ones, and `ns` has their sum."""
    steps: Ints
    """The number of each step in its run."""
    step_ns: float
    """The length of a usual step of one rank."""
    moved: Floats
    """The part of `ns` that is other ranks' waiting, by (row, rank, step)."""
    runs: int = 1

    @property
    def count(self) -> int:
        return max(1, len(self.ranks))


def read_rank_times(runs: Sequence[Evidence], costs: RunCosts, names: Sequence[str]) -> RankTimes:
    """Return the times of a side in these rows, which add up to the parts of its costs."""
    known = [run for run in runs if run.costs.steps]
    numbers = [run.used for run in known] or [np.zeros(0, dtype=np.int64)]
    step_ns = float(np.median(costs.wall_ns)) / costs.ranks if costs.steps else 0.0
    nothing = np.zeros(costs.steps, dtype=np.int64)
    whole = np.stack([costs.parts.get(name, nothing) for name in names])
    steps = np.concatenate(numbers)
    if len(steps) != costs.steps:
        steps = np.arange(costs.steps)
    found = _by_rank(known, costs, names, whole)
    if found is None:
        summed = whole[:, None, :].astype(np.float64)
        unmoved = np.zeros_like(summed)
        return RankTimes(tuple(names), summed, (), steps, step_ns, unmoved, len(known))
    ranks, ns = found
    moved = _waits_at_cause(ns, names, _waits(ns, names, costs), steps)
    ns = ns + moved
    caused = np.maximum(moved, 0.0)
    return RankTimes(tuple(names), ns, ranks, steps, step_ns, caused, len(known))


def _by_rank(
    runs: Sequence[Evidence], costs: RunCosts, names: Sequence[str], whole: Ints
) -> tuple[tuple[int, ...], Floats] | None:
    """Return ranks and times, unless they do not add up: a log, for example, has one lane."""
    ranks = {run.basis.ranks for run in runs}
    if len(ranks) != 1 or not costs.steps:
        return None
    (own,) = ranks
    if len(own) != costs.ranks or len(own) < 2:
        return None
    parts = [_of_run(run, own, names, is_timed=costs.exchange_timed) for run in runs]
    ns = np.concatenate(parts, axis=2)
    if ns.shape[2] != costs.steps:
        return None
    price = whole[names.index(OWN)] if OWN in names else np.zeros(costs.steps)
    if OWN in names:
        outer = ns[names.index(OWN)]
        total = outer.sum(axis=0)
        share = np.divide(outer, total, out=np.full_like(outer, 1 / len(own)), where=total > 0)
        ns[names.index(OWN)] = share * price
    for rest in _REMAINDERS:
        if rest in names:
            place = names.index(rest)
            ns[place] -= np.delete(ns, place, axis=0).sum(axis=0)
            break
    off = np.abs(ns.sum(axis=1) - whole).max(initial=0.0)
    return (own, ns) if off < 1.0 * costs.ranks else None


def _of_run(run: Evidence, ranks: Sequence[int], names: Sequence[str], *, is_timed: bool) -> Floats:
    """Return the times of one run; of the remainder the wall time, of profkit the counts."""
    frame = frame_of(run.trace)
    places = frame.places(run.used)
    ns = np.zeros((len(names), len(ranks), len(places)))
    for column, rank in enumerate(ranks):
        sums = frame.by_rank[rank]
        for row, name in enumerate(names):
            phase = Phase.DATA.value if name == INPUT else name
            if name in _REMAINDERS:
                ns[row, column] = frame.walls_ns[rank][places]
            elif name == OWN:
                ns[row, column] = sums.outer[places]
            elif phase in PHASES:
                ns[row, column] = sums.exposed[PHASES.index(phase), places]
            if name == Phase.BACKWARD.value and not is_timed:
                ns[row, column] += sums.exposed[PHASES.index(EXCHANGE), places]
    return ns


def _waits(ns: Floats, names: Sequence[str], costs: RunCosts) -> Floats | None:
    """Return how long each rank waits for another one in each step, or `None` if unknown.

    The rank that waits least is the last to come; what it takes in the exchange is no waiting for a
    rank.
    """
    if EXCHANGE not in names or not costs.exchange_timed:
        return None
    exchange = ns[names.index(EXCHANGE)]
    return np.asarray(exchange - exchange.min(axis=0))


def _waits_at_cause(ns: Floats, names: Sequence[str], waits: Floats | None, steps: Ints) -> Floats:
    """Return what each row, rank and step gains or loses, if waits are moved to their cause.

    The cause is the rank that waits least, in the rows in which it takes longer than the one that
    waits: in this step or, after its exchange, in the step before.
    """
    moved = np.zeros_like(ns)
    if waits is None or ns.shape[1] < 2:
        return moved
    exchange = names.index(EXCHANGE)
    work = np.delete(np.arange(len(names)), exchange)
    last, step = np.argmin(ns[exchange], axis=0), np.arange(ns.shape[2])
    before = np.maximum(step - 1, 0)
    follows = (steps == steps[before] + 1) & (step > 0)
    for rank in range(ns.shape[1]):
        left = waits[rank].copy()
        used = np.zeros((len(work), len(step)))
        for at, applies in ((step, np.ones(len(step), dtype=bool)), (before, follows)):
            longer = np.maximum(0.0, ns[work][:, last, at] - ns[work, rank][:, at]) - used[:, at]
            longer = np.where(applies, np.maximum(0.0, longer), 0.0)
            total = longer.sum(axis=0)
            wait = np.minimum(left, total)
            share = np.divide(wait, total, out=np.zeros_like(total), where=total > 0)
            for place, row in enumerate(work.tolist()):
                np.add.at(moved[row], (last, at), share * longer[place])
            used, left = share * longer, left - wait
            moved[exchange, rank] -= wait
    return moved
