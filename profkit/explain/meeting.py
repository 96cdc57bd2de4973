"""Where the ranks of a run wait for each other: for whom, how often, in which phase it is late; and transfer against the links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis.bandwidth import LinkUse, link_use
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Ints
from profkit.analysis.exchange import match_collectives, split_exchange
from profkit.analysis.rank_sums import SpanSums, add_sums, mean_phases
from profkit.vocab import Phase


@dataclass(frozen=True)
class WaitedFor:
    """A rank that others waited for: in how many of the collectives it came last, and which share of all waiting was for it.

    `phase` is the one that takes longest beyond the other ranks' median; empty where none does.
    """

    rank: int
    last_in: int
    share: float
    phase: str
    excess_ns: float


@dataclass(frozen=True)
class Meeting:
    """The collectives of the used steps. Nobody is named where some were not seen on all of their ranks."""

    collectives: int
    matched: int
    waiting_ns: float | None
    """What a rank waits a step, exposed, on average."""

    transfer_ns: float | None
    waited_for: tuple[WaitedFor, ...]
    """The one that most waiting is for first."""

    links: tuple[LinkUse, ...]


def find_meeting(
    collectives: pa.Table,
    sums: Mapping[int, SpanSums],
    used: Ints,
    ceilings: Ceilings | None = None,
) -> Meeting | None:
    """From all ranks' collectives and each rank's sums; `None` where no rank recorded collectives, or no step is used."""
    if not sums:
        return None
    exchange = split_exchange(collectives, add_sums(list(sums.values())).host_windows, used)
    if exchange is None:
        return None
    found = match_collectives(collectives, used)
    known = found.count == found.matched_count
    last_in = np.bincount(
        found.rank[found.rank == found.late_rank], minlength=int(found.rank.max(initial=0)) + 1
    )
    phases = {rank: _own_work(each, used) for rank, each in sums.items()}
    waited_for = (
        [
            WaitedFor(rank, int(last_in[rank]), share, *_longest(phases, rank))
            for rank, share in exchange.waited_for.items()
        ]
        if known
        else []
    )
    waits = [
        (each.waiting_ns, each.transfer_ns)
        for each in exchange.ranks
        if each.waiting_ns is not None and each.transfer_ns is not None
    ]
    waiting, transfer = (
        (float(np.mean(column)) for column in zip(*waits, strict=True)) if waits else (None, None)
    )
    ordered = tuple(sorted(waited_for, key=lambda each: -each.share))
    return Meeting(
        found.count,
        found.matched_count,
        waiting,
        transfer,
        ordered,
        link_use(collectives, used, ceilings),
    )


def _own_work(sums: SpanSums, used: Ints) -> dict[str, float]:
    """What one rank itself does, a step; waiting in the exchange is what the others make it do."""
    means = mean_phases(sums, used)
    return {
        INPUT if name == Phase.DATA.value else name: ns
        for name, ns in means.items()
        if name != Phase.ALLREDUCE.value
    }


def _longest(phases: Mapping[int, Mapping[str, float]], rank: int) -> tuple[str, float]:
    """The phase in which a rank lags most behind the median of the others, and by how much."""
    own = phases.get(rank, {})
    excess = {name: ns - _median(phases, rank, name) for name, ns in own.items()}
    name = max(excess, key=lambda each: excess[each], default="")
    return (name, excess[name]) if name and excess[name] > 0 else ("", 0.0)


def _median(phases: Mapping[int, Mapping[str, float]], rank: int, name: str) -> float:
    others = [told.get(name, 0.0) for other, told in phases.items() if other != rank]
    return float(np.median(others)) if others else 0.0
