"""One group of ranks sends more slowly than the other groups of its dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from profkit.analysis.exchange_places import TRANSFER, Place
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import Chosen, places_of
from profkit.explain.rules._sharded import compared
from profkit.explain.rules.base import Case, Cause, Specific, from_to, grew, here
from profkit.text import bytes_per_second, safe_text

MIN_RATIO = 2.0
"""A link is slow if its group takes this many times as long for a byte as the others do."""

MIN_GROWTH = 1.5
"""That ratio is at least this many times the base's: groups differ in their messages, too."""


Rates: TypeAlias = Mapping[str, Mapping[tuple[int, ...], float]]
"""The bytes per second of each dimension's groups of ranks while data moves."""


def find(case: Case) -> Cause | None:
    """Compare the groups of each dimension, whose messages are about as large."""
    exchange, ledger = compared(case), case.ledger
    if exchange is None:
        return None
    known = case.before.figure(rates_of)
    for dimension, rates in case.after.figure(rates_of).items():
        slowest = min(rates, key=lambda each: rates[each])
        others, before = _others(rates, slowest), known.get(dimension, {})
        if slowest not in before or others < MIN_RATIO * rates[slowest]:
            continue
        if others / rates[slowest] < MIN_GROWTH * _others(before, slowest) / before[slowest]:
            continue  # about as slow in the base
        row = exchange.row("its transfers", _is_of(dimension), TRANSFER)
        if not grew(row, ledger):
            continue
        name = safe_text(dimension)
        ranks = " and ".join(map(str, slowest))
        evidence = (
            f"{here(ledger)}ranks {ranks} of {name} send at {bytes_per_second(rates[slowest])}, "
            f"the other groups of {name} at {bytes_per_second(others)}; the exposed transfer of "
            f"{name} went from {from_to(row, ledger)} per step"
        )
        remedy = f"check the link between ranks {ranks} and their hosts (profkit ceilings --links)"
        return Cause.from_row("slow_link", row, ledger, evidence, remedy, specific=Specific.COUNT)
    return None


def _others(rates: Mapping[tuple[int, ...], float], ranks: tuple[int, ...]) -> float:
    """Return the median rate of the other groups."""
    return float(np.median([rate for each, rate in rates.items() if each != ranks]))


def _is_of(dimension: str) -> Chosen:
    return lambda place: place.dimension == dimension


def rates_of(evidence: Evidence) -> Rates:
    """Return the rates of each dimension that has several groups."""
    places = evidence.figure(places_of)
    if places is None:
        return {}
    sums: dict[str, dict[tuple[int, ...], list[float]]] = defaultdict(dict)
    rows, rank, transfer = places.found.rows, places.found.rank, places.found.transfer
    names = np.array(rows["communicator"].cast(pa.string()).to_pylist())
    size = rows["bytes"].to_numpy()
    for name in np.unique(names).tolist():
        own = names == name
        place: Place = places.places[int(places.place[own][0])]
        if place.dimension in {"", *places.unknown} or not size[own].sum():
            continue
        ranks = tuple(np.unique(rank[own]).tolist())
        # Messages in both directions share a link.
        both = sums[place.dimension].setdefault(ranks, [0.0, 0.0])
        both[0] += float(size[own].sum())
        both[1] += float(transfer[own].sum())
    found = {}
    for dimension, groups in sums.items():
        if len(groups) > 1:
            speeds = {ranks: 1e9 * sent / max(1.0, ns) for ranks, (sent, ns) in groups.items()}
            found[dimension] = speeds
    return found
