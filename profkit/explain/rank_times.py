"""The time of each rank in each row and step, with waits for another rank at their cause.

What one rank takes longer, others wait for in the exchange. Such a wait is moved to the row in
which the rank was late, so that one loss is one thing. Nothing is added or taken away by that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profkit.explain.evidence import Evidence
from profkit.frame.costs import OWN, REST, RunCosts
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
    """The runs that have such steps; 0 for a log, whose lines are means of several."""
    is_timed: bool = False
    """True if the exchange was timed on all ranks, so that waits have a cause."""

    @property
    def count(self) -> int:
        return max(1, len(self.ranks))


def read_rank_times(runs: Sequence[Evidence], costs: RunCosts, names: Sequence[str]) -> RankTimes:
    """Return the times of a side in these rows, which add up to the parts of its costs."""
    known = [run for run in runs if run.costs.steps]
    numbers = [run.used for run in known] or [np.zeros(0, dtype=np.int64)]
    step_ns = 0.0
    if costs.steps:
        step_ns = float(np.median(costs.wall_ns)) / costs.ranks
    nothing = np.zeros(costs.steps, dtype=np.int64)
    whole = np.stack([costs.parts.get(name, nothing) for name in names])
    steps = np.concatenate(numbers)
    if len(steps) != costs.steps:
        steps = np.arange(costs.steps)
    found = _by_rank(known, costs, names, whole)
    ranks, ns = found or ((), whole[:, None, :].astype(np.float64))
    is_timed = EXCHANGE in names and costs.exchange_timed and len(ranks) > 1
    count = 0 if costs.of_lines else len(known)
    return RankTimes(tuple(names), ns, ranks, steps, step_ns, np.zeros_like(ns), count, is_timed)


def waits_at_cause(side: RankTimes, other: RankTimes, factor: float) -> RankTimes:
    """Return the times of a side with each wait at the rank and in the row that caused it.

    The rank that waits least is the last to come: all others wait for what it takes longer than
    they do, in this step or, after its exchange, in the step before. What one of them takes longer
    itself meanwhile delays nobody, so it is a part of that wait. `factor` turns a step of the other
    side into one of this side's batch; what a rank takes longer than there is its own doing.
    """
    ns, names, steps = side.ns, side.names, side.steps
    if not side.is_timed or ns.shape[2] < 1:
        return side
    moved, caused = np.zeros_like(ns), np.zeros_like(ns)
    exchange = names.index(EXCHANGE)
    work = np.delete(np.arange(len(names)), exchange)
    last, step = np.argmin(ns[exchange], axis=0), np.arange(ns.shape[2])
    before = step - 1  # of the first one, the last: no two steps have the same
    follows = (steps == steps[before] + 1) & (step > 0)
    usual = factor * other.ns.mean(axis=2)
    if other.ranks != side.ranks:
        usual = np.broadcast_to(np.median(ns.mean(axis=2), axis=1)[:, None], ns.shape[:2])
    own_work = ns[work]
    passes = []
    for at, applies in ((step, np.ones(len(step), dtype=bool)), (before, follows)):
        passes.append((at, applies, own_work[:, last, at]))
    for rank in range(ns.shape[1]):
        left = ns[exchange, rank] - ns[exchange].min(axis=0)
        used = np.zeros((len(work), len(step)))
        for at, applies, of_last in passes:
            mine = own_work[:, rank, at]
            apart = of_last - mine
            longer = np.where(applies, np.maximum(0.0, apart - used[:, at]), 0.0)
            own = np.minimum(-apart, mine - usual[work, rank][:, None])
            own = np.where(applies & (at == step), np.maximum(0.0, own), 0.0)
            total = longer.sum(axis=0)
            own *= np.minimum(1.0, _ratio(np.maximum(0.0, total - left), own.sum(axis=0)))
            wait = np.minimum(left, total)
            share = np.minimum(1.0, _ratio(wait + own.sum(axis=0), total))
            for place, row in enumerate(work.tolist()):
                moved[row, last, at] += share * longer[place]
                caused[row, last, at] += share * longer[place]
                moved[row, rank] -= own[place]
            used, left = share * longer, left - wait
            moved[exchange, rank] -= wait
    return dataclasses.replace(side, ns=ns + moved, moved=caused)


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


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
            if name in _REMAINDERS:
                ns[row, column] = frame.walls_ns[rank][places]
            elif name == OWN:
                ns[row, column] = sums.outer[places]
            elif name in PHASES:
                ns[row, column] = sums.exposed[PHASES.index(name), places]
            if name == Phase.BACKWARD.value and not is_timed:
                ns[row, column] += sums.exposed[PHASES.index(EXCHANGE), places]
    return ns
