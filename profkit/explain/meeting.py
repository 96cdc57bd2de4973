"""The collectives of a run: for which ranks the others wait, why, and the links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis.bandwidth import LinkUse, link_use
from profkit.analysis.ceilings import Ceilings
from profkit.frame.calls import Calls
from profkit.frame.estimate import Ints
from profkit.frame.exchange import Exchange, expose, split_exchange
from profkit.frame.rank_sums import SpanSums, add_sums, mean_phases
from profkit.vocab import Phase


@dataclass(frozen=True)
class WaitedFor:
    """A rank that others waited for."""

    rank: int
    last_in: int
    """The number of collectives in which it came last."""
    share: float
    """The share of all waiting that was for it."""
    phase: str
    """The phase that takes longest beyond the other ranks' median; empty if none does."""
    excess_ns: float
    is_late: bool
    """True if it is late in more steps than it may be by chance."""


@dataclass(frozen=True)
class Meeting:
    """The collectives of the used steps.

    `waited_for` is empty if some collectives were not recorded on all of their ranks.
    """

    collectives: int
    matched: int
    waiting_ns: float | None
    """The exposed wait per step, on average over the ranks."""

    transfer_ns: float | None
    timed: bool
    """False if only the devices see the waits, and not all of them were asked."""
    waited_for: tuple[WaitedFor, ...]
    """The rank that most waiting is for comes first."""

    links: tuple[LinkUse, ...]


def find_meeting(
    collectives: pa.Table | Calls,
    sums: Mapping[int, SpanSums],
    used: Ints,
    ceilings: Ceilings | None = None,
    *,
    timed: bool = True,
) -> Meeting | None:
    """Return where ranks wait, from all ranks' collectives and each rank's sums.

    If the waits were not `timed`, nobody is named. The result is `None` if no rank recorded
    collectives, or if no step is used.
    """
    if not sums:
        return None
    exposure = expose(collectives, add_sums(list(sums.values())).windows, used)
    exchange, found = split_exchange(exposure), exposure.found
    if exchange is None:
        return None
    waited_for = []
    if timed and found.count == found.matched_count:
        last_in = found.last_in()
        work = {}
        for rank, each in sums.items():
            work[rank] = mean_phases(each, used)
            work[rank].pop(Phase.ALLREDUCE.value, None)  # the others make it wait there
        for rank, share in exchange.waited_for.items():
            late = *_latest(work, rank), exchange.is_late(rank)
            waited_for.append(WaitedFor(rank, last_in.get(rank, 0), share, *late))
    waiting_ns = transfer_ns = None
    if timed:
        waiting_ns, transfer_ns = _mean_times(exchange)
    return Meeting(
        found.count,
        found.matched_count,
        waiting_ns,
        transfer_ns,
        timed,
        tuple(sorted(waited_for, key=lambda each: -each.share)),
        link_use(collectives, used, ceilings),
    )


def _mean_times(exchange: Exchange) -> tuple[float | None, float | None]:
    """Return waiting and transfer, on average over the ranks for which both are known."""
    waits, transfers = [], []
    for each in exchange.ranks:
        if each.waiting_ns is not None and each.transfer_ns is not None:
            waits.append(each.waiting_ns)
            transfers.append(each.transfer_ns)
    if not waits:
        return None, None
    return float(np.mean(waits)), float(np.mean(transfers))


def _latest(work: Mapping[int, Mapping[str, float]], rank: int) -> tuple[str, float]:
    """Return the row in which a rank is most behind the others' median, and by how much."""
    latest, excess_ns = "", 0.0
    for name, ns in work.get(rank, {}).items():
        others = [own.get(name, 0.0) for other, own in work.items() if other != rank]
        excess = ns
        if others:
            excess -= float(np.median(others))
        if excess > excess_ns:
            latest, excess_ns = name, excess
    return latest, excess_ns
