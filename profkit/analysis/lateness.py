"""Which rank takes longer than the others for its own work, in which phase, and by how much.

The ranks of a step are compared with each other, so whatever slows all of them cancels out. What they
wait for each other is no work of theirs and does not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis.estimate import Estimate, Floats, Ints, estimate_ratios
from profkit.analysis.phases import UNKNOWN, step_times
from profkit.vocab import PHASES, Phase

WORK = tuple(name for name in (*PHASES, UNKNOWN) if name != Phase.ALLREDUCE.value)


@dataclass(frozen=True)
class Lateness:
    """One rank's own work over the mean of the others', ns a step, by phase."""

    rank: int
    phase: str
    """The one in which it takes longer."""
    excess: Estimate
    """Of that phase."""
    whole_ns: float
    """Of all its work."""


@dataclass(frozen=True)
class RankWork:
    """The own work of all ranks: an array of (rank, phase, step) in ns."""

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    ns: Floats

    def lateness(self, rank: int, phase: str) -> Lateness | None:
        """How much later this rank is in this phase; `None` where there is no such rank, and for one that is alone."""
        if rank not in self.ranks or not self._compare:
            return None
        mine = self.ranks.index(rank)
        over = self._over_others(mine)
        series = over[self.phases.index(phase)][None, :]
        (excess,) = estimate_ratios(series, np.ones_like(series))
        return Lateness(rank, phase, excess, float(over.sum(axis=0).mean()))

    def latest(self) -> Lateness | None:
        """The rank with the most work, and the phase that makes it so."""
        if not self._compare:
            return None
        whole = self.ns.sum(axis=1).mean(axis=1)
        mine = int(np.argmax(whole))
        phase = int(np.argmax(self._over_others(mine).mean(axis=1)))
        return self.lateness(self.ranks[mine], self.phases[phase])

    @property
    def _compare(self) -> bool:
        """Whether there is anybody to compare with."""
        return len(self.ranks) > 1 and self.ns.shape[2] > 0

    def _over_others(self, mine: int) -> Floats:
        others = np.delete(self.ns, mine, axis=0).mean(axis=0)
        return np.asarray(self.ns[mine] - others)


def rank_work(steps: pa.Table, spans: pa.Table, used: Ints) -> RankWork:
    """What each rank worked in the used steps."""
    ranks = np.unique(steps["rank"].to_numpy()).astype(np.int64)
    apart = [_number_by_rank(table, ranks, used) for table in (steps, spans)]
    times = step_times(apart[0], apart[1], np.arange(len(ranks) * len(used)))
    ns = np.zeros((len(ranks), len(WORK), len(used)))
    for name, part in zip(times.names, times.parts, strict=True):
        if name in WORK:
            ns[:, WORK.index(name)] = part.reshape(len(ranks), len(used)) * len(
                ranks
            )  # a mean over ranks, all but one of which have no such step
    return RankWork(tuple(ranks.tolist()), WORK, ns)


def _number_by_rank(rows: pa.Table, ranks: Ints, used: Ints) -> pa.Table:
    """The rows with a step of its own for each rank's: the used ones of the first rank, then of the next."""
    step = rows["step"].fill_null(-1).to_numpy()
    place = np.minimum(np.searchsorted(used, step), max(0, len(used) - 1))
    is_used = used[place] == step if len(used) else np.zeros(len(step), dtype=bool)
    number = np.searchsorted(ranks, rows["rank"].to_numpy()) * len(used) + place
    return rows.set_column(
        rows.schema.get_field_index("step"), "step", pa.array(number, mask=~is_used)
    )


def minus(one: Estimate, other: Estimate | None) -> Estimate:
    """The difference of two independent figures; without an interval where one has none."""
    if other is None:
        return one
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Estimate(value)
    return Estimate(
        value,
        value - math.hypot(one.value - one.low, other.high - other.value),
        value + math.hypot(one.high - one.value, other.value - other.low),
    )
