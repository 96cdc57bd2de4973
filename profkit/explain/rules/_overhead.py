"""The cost of collectives besides their own exposed time.

Each one is called, copied into and out of its buffers, and sent while others compute or send. The
rows show this as longer computing, and as other collectives that are exposed for longer.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from profkit.analysis.exchange_places import Place
from profkit.analysis.place_costs import PlaceCost
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import Chosen, ExchangeLedger, places_of
from profkit.explain.rules._hidden import shares_cores
from profkit.explain.rules._module_times import modules_of
from profkit.explain.rules._sharded import traffic
from profkit.explain.rules.base import (
    Case,
    Cause,
    cost,
    from_to,
    grew,
    is_material,
    share_of,
    shift,
)
from profkit.vocab import ROOT_MODULE, Phase


def with_overhead(
    cause: Cause, is_own: Chosen, case: Case, exchange: ExchangeLedger, *phases: str
) -> Cause:
    """Return the cause of more collectives with what else grew in these phases.

    Computing counts as far as the quickest module takes as long for each of its collectives. No row
    separates a call from what is computed next to it, so other causes in the same rows come first,
    and the interval begins with the collectives' own exposed time.
    """
    ledger, own_ns = exchange.ledger, cause.cost_ns

    def is_around(place: Place | PlaceCost) -> bool:
        return place.around in phases

    def is_other(place: Place) -> bool:
        return is_around(place) and not is_own(place)

    now, before = traffic(case.after, is_around).calls, traffic(case.before, is_around).calls
    added = now * ledger.batch_factor(case.after.step_samples)
    added -= before * ledger.batch_factor(case.before.step_samples)
    most_ns = max(0.0, added) * case.after.figure(ns_per_collective)
    computing, others = exchange.computing(*phases), exchange.row("others", is_other)
    open_ns, words = 0.0, [cause.evidence]
    if most_ns and grew(computing, ledger):
        open_ns += min(cost(computing, ledger).value, most_ns)
        words.append(
            f"{' and '.join(phases)}, which call them and copy what they carry, went from "
            f"{from_to(computing, ledger)} without waits"
        )
    if grew(others, ledger):
        open_ns += cost(others, ledger).value
        words.append(f"other collectives there were exposed for {from_to(others, ledger)}")
    if own_ns is None or not open_ns:
        return cause
    high = None if own_ns.high is None else own_ns.high + open_ns
    cost_ns = dataclasses.replace(own_ns, value=own_ns.value + open_ns, high=high)
    return dataclasses.replace(
        cause,
        cost_ns=cost_ns,
        share_of_gap=share_of(cost_ns.value, ledger),
        evidence="; ".join(words),
        rows=tuple(dict.fromkeys((*phases, *cause.rows))),
        open_ns=open_ns,
    )


def less_competition(cause: Cause, case: Case, exchange: ExchangeLedger) -> Cause:
    """Return the cause less what computing gains, as no gather takes its cores any more.

    The interval ends with the whole cost, because computing may be shorter for another reason.
    """
    ledger = exchange.ledger
    row = exchange.computing(Phase.FORWARD.value, Phase.BACKWARD.value)
    gain_ns = -cost(row, ledger).value
    if cause.cost_ns is None or gain_ns <= 0 or not shares_cores(case):
        return cause
    cost_ns = dataclasses.replace(shift(cause.cost_ns, -gain_ns), high=cause.cost_ns.high)
    evidence = cause.evidence
    if is_material(gain_ns, ledger):
        evidence += f"; computing, which shares its cores, went from {from_to(row, ledger)}"
    share = share_of(cost_ns.value, ledger)
    return dataclasses.replace(cause, cost_ns=cost_ns, share_of_gap=share, evidence=evidence)


def ns_per_collective(evidence: Evidence) -> float:
    """Return how long the quickest module computes for each of its collectives; 0 if unknown.

    A root has little to compute itself.
    """
    times, places = evidence.figure(modules_of), evidence.figure(places_of)
    if times is None or places is None:
        return 0.0
    counts = np.bincount(places.place, minlength=len(places.places))
    calls: dict[str, int] = {}
    for place, count in zip(places.places, counts.tolist(), strict=True):
        calls[place.module] = calls.get(place.module, 0) + count
    found = []
    for name, ns in zip(times.modules, times.ns.sum(axis=(1, 2)).tolist(), strict=True):
        if name != ROOT_MODULE:
            found.append(ns / calls[name])
    return min(found, default=0.0)
