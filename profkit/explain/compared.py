"""Two runs or more beside each other: which are repeats, how the job scales over them, and what lies between any two of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.repeats import group_repeats
from profkit.explain.explained import Explained, Side, explain_sides, read_side, scale_sides
from profkit.explain.scaling import ScalingRow
from profkit.trace import Trace


class Pair(NamedTuple):
    """Two sides by their places: the one that the way leads from, and the one it ends on."""

    base: int
    target: int

    @property
    def swapped(self) -> Pair:
        return Pair(self.target, self.base)


@dataclass(frozen=True)
class Compared:
    """Sides in order, the base first. What lies between two of them is worked out when it is first asked for; safe to use from several threads."""

    sides: tuple[Side, ...]
    _known: dict[Pair, Explained] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The base with each of the others, then the neighbours among these."""
        count = len(self.sides)
        return (
            *(Pair(0, target) for target in range(1, count)),
            *(Pair(target - 1, target) for target in range(2, count)),
        )

    @functools.cached_property
    def scaling(self) -> tuple[ScalingRow, ...]:
        """How the job scales; of two sides alone the ledger says all."""
        return scale_sides(self.sides) if len(self.sides) > 2 else ()

    def is_known(self, pair: Pair) -> bool:
        return pair in self._known

    def between(self, pair: Pair) -> Explained:
        """The ledger from one side to another, and its causes."""
        if pair not in self._known:
            sides = self.sides[pair.base], self.sides[pair.target]
            self._known[pair] = explain_sides(
                sides[0].runs, sides[1].runs, (_ceilings(sides[0]), _ceilings(sides[1]))
            )
        return self._known[pair]


def _ceilings(side: Side) -> Ceilings | None:
    return load_ceilings(side.middle.trace.manifest.environment)


def compare_runs(traces: Sequence[Trace]) -> Compared:
    """Runs in order, the base first and the target last, with the figures that are looked at first.

    Of three and more, those of one configuration are repeats of each other; where all are, each stands for itself.
    """
    compared = Compared(tuple(read_side(side) for side in _sides(traces)))
    _ = compared.scaling
    compared.between(compared.pairs[0])
    return compared


def _sides(traces: Sequence[Trace]) -> list[list[Trace]]:
    sides = group_repeats(traces) if len(traces) > 2 else []
    if len(sides) < 2:
        return [[trace] for trace in traces]
    return sorted(sides, key=lambda side: any(trace is traces[-1] for trace in side))
