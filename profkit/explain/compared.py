"""Two or more runs compared: their repeats, the scaling, and the gap of any pair."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.repeats import group_repeats
from profkit.explain.explained import Explained, Side, explain_sides, read_side, scale_sides
from profkit.explain.scaling import ScalingRow
from profkit.trace import Trace


class Pair(NamedTuple):
    """Two sides by their indices."""

    base: int
    target: int

    @property
    def swapped(self) -> Pair:
        return Pair(self.target, self.base)


class Compared:
    """Sides in order, the base first; safe to use from several threads.

    The gap between two sides is computed when it is first asked for.
    """

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = tuple(sides)
        self._known: dict[Pair, Explained] = {}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The base with each of the others, then the neighbours among these."""
        count = len(self.sides)
        with_base = [Pair(0, target) for target in range(1, count)]
        return (*with_base, *itertools.starmap(Pair, itertools.pairwise(range(1, count))))

    @functools.cached_property
    def scaling(self) -> tuple[ScalingRow, ...]:
        """The scaling of the job; empty for two sides, because their ledger says it all."""
        return scale_sides(self.sides) if len(self.sides) > 2 else ()

    def is_known(self, pair: Pair) -> bool:
        """Return true if the pair was compared before."""
        return pair in self._known

    def between(self, pair: Pair) -> Explained:
        """Return the ledger from one side to another, and its causes."""
        if pair not in self._known:
            base, target = self.sides[pair.base], self.sides[pair.target]
            base_ceilings = load_ceilings(base.middle.trace.manifest.environment)
            target_ceilings = load_ceilings(target.middle.trace.manifest.environment)
            self._known[pair] = explain_sides(
                base.runs, target.runs, (base_ceilings, target_ceilings)
            )
        return self._known[pair]


def compare_runs(traces: Sequence[Trace]) -> Compared:
    """Compare runs in order, the base first, and compute the figures that are shown first.

    If there are three or more, those of one configuration are repeats of each other. If all of them
    are, each run is a side of its own.
    """
    sides = group_repeats(traces) if len(traces) > 2 else []
    if len(sides) < 2:
        sides = [[trace] for trace in traces]
    else:  # the repeats of the last run are the last side
        sides.sort(key=lambda side: any(trace is traces[-1] for trace in side))
    compared = Compared([read_side(side) for side in sides])
    _ = compared.scaling
    compared.between(compared.pairs[0])
    return compared
