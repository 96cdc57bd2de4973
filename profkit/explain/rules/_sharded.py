"""The exchange of sharded jobs in the figures that several rules compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from profkit.analysis.exchange_places import Place
from profkit.analysis.place_costs import PlaceCost, cost_places
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import ExchangeLedger, compare_places, places_of
from profkit.explain.rules.base import Case
from profkit.vocab import Phase

GATHER = "all_gather"


class Traffic(NamedTuple):
    """Collectives per step and rank, in calls, bytes and ns."""

    calls: float
    bytes: float
    exposed_ns: float
    hidden_ns: float


def compared(case: Case) -> ExchangeLedger | None:
    """Return the exchange of both runs by place, or `None` if no run is sharded."""
    return compare_places(case.ledger, case.before, case.after)


def costs_of(evidence: Evidence) -> tuple[PlaceCost, ...]:
    """Return the cost of each place of a run; empty if the waits were not timed."""
    places = evidence.figure(places_of)
    return () if places is None else tuple(cost_places(places))


def traffic(evidence: Evidence, chosen: Callable[[PlaceCost], bool]) -> Traffic:
    """Return the collectives of some places together."""
    calls = size = exposed_ns = hidden_ns = 0.0
    for each in evidence.figure(costs_of):
        if chosen(each):
            calls, size = calls + each.operations, size + each.bytes
            exposed_ns, hidden_ns = exposed_ns + each.exposed_ns, hidden_ns + each.hidden_ns
    return Traffic(calls, size, exposed_ns, hidden_ns)


def computing_ns(evidence: Evidence) -> float:
    """Return how long forward and backward compute per step and rank, without waits inside."""
    parts, steps = evidence.costs.parts, evidence.costs.steps * evidence.costs.ranks
    whole = 0.0
    for name in (Phase.FORWARD.value, Phase.BACKWARD.value):
        if name in parts:
            whole += float(parts[name].sum())
    return whole / max(1, steps)


def is_gather(place: Place | PlaceCost) -> bool:
    return place.op == GATHER
