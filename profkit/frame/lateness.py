"""Finds the rank that takes longer than the others for its own work, and in which phase.

The ranks of a step are compared with each other, so whatever slows all of them cancels out. Waiting
for each other is no work of theirs and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from profkit.frame.estimate import Estimate, Floats, Ints, estimate_ratios
from profkit.frame.phases import UNKNOWN
from profkit.vocab import PHASES, Phase

_MOST = np.iinfo(np.int32).max
_OWN = [place for place, name in enumerate(PHASES) if name != Phase.ALLREDUCE.value]
WORK = (*(PHASES[place] for place in _OWN), UNKNOWN)


@dataclass(frozen=True)
class Lateness:
    """One rank's own work minus the median of the others', in ns per step.

    The median, because a second late rank does not make the first one less late.
    """

    rank: int
    phases: tuple[str, ...]
    """The phases that are compared; in the first it takes longest beyond the others."""
    excess: Estimate
    """The difference in these phases together."""
    whole_ns: float
    """The difference in all its work."""

    @property
    def phase(self) -> str:
        return self.phases[0]


@dataclass(frozen=True)
class RankWork:
    """The own work of all ranks: an array of (rank, phase, step) in whole ns."""

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    ns: Ints
    _known: dict[int, Mapping[str, Estimate]] = field(default_factory=dict, compare=False)
    """The lateness of ranks by phase: it takes long to estimate, and is asked for again."""

    def lateness(self, rank: int, *phases: str) -> Lateness | None:
        """Return how late this rank is in these phases; `None` without it or another rank."""
        if rank not in self.ranks or not self._comparable:
            return None
        over = self._over_others(self.ranks.index(rank))
        series = over[[self.phases.index(phase) for phase in phases]].sum(axis=0)[None, :]
        (excess,) = estimate_ratios(series, np.ones_like(series))
        return Lateness(rank, phases, excess, float(over.sum(axis=0).mean()))

    def by_phase(self, rank: int) -> Mapping[str, Estimate]:
        """Return how late this rank is in each phase; empty without it or another rank."""
        if rank not in self.ranks or not self._comparable:
            return {}
        if rank not in self._known:
            over = self._over_others(self.ranks.index(rank))
            estimates = estimate_ratios(over, np.ones_like(over))
            self._known[rank] = dict(zip(self.phases, estimates, strict=True))
        return self._known[rank]

    def mean_ns(self, rank: int, phase: str) -> float:
        """Return the mean time of a rank's phase; zero without this rank."""
        if rank not in self.ranks or not self.ns.shape[2]:
            return 0.0
        return float(self.ns[self.ranks.index(rank), self.phases.index(phase)].mean())

    def over_mean(self, rank: int) -> dict[str, float]:
        """Return how much longer a rank takes for each of its phases than the others on average."""
        mine, steps = self.ranks.index(rank), self.ns.shape[2]
        sums = self.ns.sum(axis=2)  # of whole numbers, so that they are exact in any order
        own = sums[mine] / steps
        others = (sums.sum(axis=0) - sums[mine]) / ((len(sums) - 1) * steps)
        found = {}
        for phase, ns, usual in zip(self.phases, own.tolist(), others.tolist(), strict=True):
            if ns or phase == UNKNOWN:
                found[phase] = ns - usual
        return found

    def latest(self) -> Lateness | None:
        """Return the rank with the most work, and the phase that makes it so."""
        if not self._comparable:
            return None
        whole = self.ns.sum(axis=1).mean(axis=1)
        mine = int(np.argmax(whole))
        phase = int(np.argmax(self._over_others(mine).mean(axis=1)))
        return self.lateness(self.ranks[mine], self.phases[phase])

    def waits(self) -> Estimate | None:
        """Return how long a rank waits per step for the latest one, on average over the ranks."""
        if not self._comparable:
            return None
        whole = self.ns.sum(axis=1)
        series = (whole.max(axis=0) - whole.mean(axis=0))[None, :]
        (waits,) = estimate_ratios(series, np.ones_like(series))
        return waits

    @property
    def _comparable(self) -> bool:
        return len(self.ranks) > 1 and self.ns.shape[2] > 0

    def _over_others(self, mine: int) -> Floats:
        others = np.median(np.delete(self.ns, mine, axis=0), axis=0)
        return np.asarray(self.ns[mine] - others)


def work_of(by_rank: Iterable[tuple[int, Ints, Ints]]) -> RankWork:
    """Return the own work of ranks, from each one's time by (phase, step) and wall times."""
    ranks, rows = [], []
    for rank, own, wall_ns in by_rank:
        rest = wall_ns - own.sum(axis=0)
        row = np.concatenate([own[_OWN], [rest]])
        ranks.append(rank)
        if np.abs(row).max(initial=0) <= _MOST:
            row = row.astype(np.int32)
        rows.append(row)
    return RankWork(tuple(ranks), WORK, np.stack(rows))
