"""One group of ranks sends more slowly than the other groups of its dimension."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.exchange_places import Place
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import Chosen, places_of
from profkit.explain.rules._sharded import compared
from profkit.explain.rules.base import Case, Cause, from_to, grew, here
from profkit.text import bytes_per_second, safe_text

MIN_RATIO = 2.0
"""A link is slow if its group takes this many times as long for a byte as the others do."""

EXPLAINS = ("exposed_communication",)


class SlowGroup(NamedTuple):
    """The slowest group of a dimension, in bytes per second of the transfer."""

    dimension: str
    ranks: tuple[int, ...]
    rate: float
    others: float
    """The median of the other groups."""


def find(case: Case) -> Cause | None:
    """Compare the groups of each dimension, whose messages are about as large."""
    exchange, ledger = compared(case), case.ledger
    if exchange is None or not exchange.is_split:
        return None
    known = {each.dimension: each for each in case.before.figure(slow_groups)}
    for slow in case.after.figure(slow_groups):
        was = known.get(slow.dimension)
        if slow.others < MIN_RATIO * slow.rate:
            continue
        if was is not None and was.ranks == slow.ranks and was.others >= MIN_RATIO * was.rate:
            continue  # as slow in the base
        row = exchange.row("its waits", _is_of(slow.dimension))
        if was is None or not grew(row, ledger):
            continue
        name = safe_text(slow.dimension)
        ranks = " and ".join(map(str, slow.ranks))
        evidence = (
            f"{here(ledger)}ranks {ranks} of {name} send at {bytes_per_second(slow.rate)}, the "
            f"other groups of {name} at {bytes_per_second(slow.others)}; the exposed time of "
            f"{name} went from {from_to(row, ledger)} per step"
        )
        remedy = f"check the link between ranks {ranks} and their hosts (profkit ceilings --links)"
        return Cause.from_row("slow_link", row, ledger, evidence, remedy, explains=EXPLAINS)
    return None


def _is_of(dimension: str) -> Chosen:
    return lambda place: place.dimension == dimension


def slow_groups(evidence: Evidence) -> tuple[SlowGroup, ...]:
    """Return the slowest group of each dimension that has several."""
    places = evidence.figure(places_of)
    if places is None or not places.is_complete:
        return ()
    rates: dict[str, dict[tuple[int, ...], list[float]]] = defaultdict(dict)
    found, rows = places.found, places.found.rows
    names = np.array(rows["communicator"].cast(pa.string()).to_pylist())
    size = rows["bytes"].to_numpy()
    for name in np.unique(names).tolist():
        own = names == name
        place: Place = places.places[int(places.place[own][0])]
        if not place.dimension or not size[own].sum():
            continue
        ranks = tuple(np.unique(found.rank[own]).tolist())
        # Messages in both directions share a link.
        sums = rates[place.dimension].setdefault(ranks, [0.0, 0.0])
        sums[0] += float(size[own].sum())
        sums[1] += float(found.transfer[own].sum())
    slowest = []
    for dimension, groups in rates.items():
        speeds = {ranks: 1e9 * sent / max(1.0, ns) for ranks, (sent, ns) in groups.items()}
        if len(speeds) > 1:
            ranks = min(speeds, key=lambda each: speeds[each])
            others = [speed for each, speed in speeds.items() if each != ranks]
            slowest.append(SlowGroup(dimension, ranks, speeds[ranks], float(np.median(others))))
    return tuple(slowest)
