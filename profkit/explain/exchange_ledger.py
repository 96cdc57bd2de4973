"""The exchange of two sharded runs by place, in rows that add up to its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profkit.analysis.exchange_places import (
    IDLE,
    TRANSFER,
    WAITING,
    Place,
    Places,
    find_places,
    is_sharded,
)
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger, Row, sum_rows
from profkit.frame.costs import RunCosts
from profkit.frame.estimate import Ints
from profkit.vocab import Phase

OTHERWISE = "otherwise"
"""The waits of other threads, and of ranks without collectives."""

Chosen = Callable[[Place], bool]


@dataclass(frozen=True, eq=False)
class ExchangeLedger:
    """The exposed exchange of two runs by place, in time per sample and GPU.

    Of repeats, these are the runs of middle speed.
    """

    ledger: Ledger
    """The ledger of these two runs alone."""
    before: Places
    after: Places

    def row(self, name: str, chosen: Chosen, *kinds: str) -> Row:
        """Return the exposed time of some places as one row; of some parts of it, with `kinds`."""
        sides = []
        for side, places in ((self.ledger.base, self.before), (self.ledger.target, self.after)):
            ns = np.zeros_like(side.wall_ns)
            for (place, kind), part in places.by_step(split=bool(kinds)).items():
                if chosen(place) and (not kinds or kind in kinds):
                    ns = ns + part
            sides.append(_only(side, name, ns))
        alone = dataclasses.replace(self.ledger, base=sides[0], target=sides[1])
        return dataclasses.replace(sum_rows(alone, name, [name]), sums=(Phase.ALLREDUCE.value,))

    def computing(self, *phases: str) -> Row:
        """Return what is computed in some phases as one row, without the exposed exchange."""
        return sum_rows(self.ledger, "computing", phases)

    @property
    def unknown(self) -> frozenset[str]:
        """The dimensions in which waiting is not known apart from transfer on both sides."""
        return self.before.unknown | self.after.unknown

    def rows(self) -> tuple[Row, ...]:
        """Return a row for each dimension, operation and phase, the longest first."""
        found = []
        for kind in dict.fromkeys(map(_without_module, (*self.before.places, *self.after.places))):
            row = self.row(kind.words, _is_kind(kind))
            if kind.dimension not in self.unknown:
                inside = []
                for name in _KINDS:
                    part = self.row(name, _is_kind(kind), name)
                    if part.base.value or part.target.value:
                        inside.append(part)
                row = dataclasses.replace(row, inside=tuple(inside))
            found.append(row)
        found.sort(key=lambda row: -max(row.base.value, row.target.value))
        rest = self._otherwise()
        if rest.base.value or rest.target.value:
            found.append(rest)
        return tuple(found)

    def _otherwise(self) -> Row:
        sides = []
        for side, places in ((self.ledger.base, self.before), (self.ledger.target, self.after)):
            ns = side.parts.get(Phase.ALLREDUCE.value, np.zeros_like(side.wall_ns))
            sides.append(_only(side, OTHERWISE, ns - sum(places.by_step(split=False).values())))
        alone = dataclasses.replace(self.ledger, base=sides[0], target=sides[1])
        return sum_rows(alone, OTHERWISE, [OTHERWISE])


_KINDS = (WAITING, TRANSFER, IDLE)


def compare_places(ledger: Ledger, before: Evidence, after: Evidence) -> ExchangeLedger | None:
    """Compare the exchange by place; `None` if no run is sharded, or not all waits were timed."""
    runs = (before, after)
    if ledger.find(Phase.ALLREDUCE.value) is None:
        return None
    if not any(is_sharded(run.basis.collectives) for run in runs):
        return None
    known, found = before.figure(places_of), after.figure(places_of)
    if known is None or found is None:
        return None
    base, target = before.costs, after.costs
    if not ledger.per_sample:
        base, target = base.per_step(), target.per_step()
    return ExchangeLedger(dataclasses.replace(ledger, base=base, target=target), known, found)


def places_of(evidence: Evidence) -> Places | None:
    """Return the collectives of a run by place, if all waits for them were timed."""
    if evidence.basis.why_no_exchange:
        return None
    return find_places(evidence.basis.collectives, evidence.basis.spans, evidence.used)


def _only(costs: RunCosts, name: str, ns: Ints) -> RunCosts:
    return dataclasses.replace(costs, parts={name: ns})


def _without_module(place: Place) -> Place:
    return place._replace(module="")


def _is_kind(kind: Place) -> Chosen:
    return lambda place: _without_module(place) == kind
