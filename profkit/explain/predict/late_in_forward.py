"""Tell a late rank from those that wait for it in their forward."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.evidence import Evidence
from profkit.frame.device_times import is_own
from profkit.frame.exchange import HOST_BACKENDS
from profkit.frame.lateness import Lateness
from profkit.vocab import Phase

MIN_TRADED_SHARE = 0.25
"""Ranks trade places if the others take this share of a rank's lateness longer elsewhere."""

MIN_WHOLE_SHARE = 0.5
"""A rank whose whole work is longer by less than this share of its late phase caught up."""

_FROM_FORWARD = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.ALLREDUCE.value)


def find_trade(evidence: Evidence, late: Lateness) -> float | None:
    """Return how much longer the others take in forward, or outside it for lateness there.

    A rank that comes late to its forward makes the others wait in theirs, if it begins with a
    broadcast (as DDP's does, of buffers). In the rows, those that wait look late in forward.
    """
    least_ns = MIN_TRADED_SHARE * late.excess.value
    if late.phase in _FROM_FORWARD[1:] or evidence.figure(times_broadcasts):
        return None
    excess = evidence.work.by_phase(late.rank)
    traded_ns = -excess[Phase.FORWARD.value].value
    if late.phase == Phase.FORWARD.value:
        traded_ns = 0.0
        for phase, each in excess.items():
            if phase not in _FROM_FORWARD:
                traded_ns -= each.value
    return traded_ns if traded_ns >= least_ns > 0 else None


def times_broadcasts(evidence: Evidence) -> bool:
    """Return true if no wait for a broadcast is part of a forward, because all were recorded.

    The hooks of PyTorch see the broadcast of a model's buffers, and the host waits for it.
    """
    trace = evidence.trace
    backends = set(pc.unique(trace.collectives["backend"]).to_pylist())
    is_torch = trace.manifest.framework in {"torch", "pytorch"}
    return is_own(trace) and is_torch and backends <= {*HOST_BACKENDS}


def confirm_lateness(evidence: Evidence, late: Lateness) -> Lateness | None:
    """Return the rank that is late before its forward, or `None` if it cannot be told."""
    return _told_by_broadcasts(evidence, late) or _find_before_forward(evidence, late)


def _told_by_broadcasts(evidence: Evidence, late: Lateness) -> Lateness | None:
    """Return the rank that waits least in broadcasts, and where it is late.

    The result is `None` without broadcasts of all ranks that explain the trade.
    """
    waits = evidence.figure(broadcast_ns)
    if len(waits) < 2 or len(waits) < len(evidence.work.ranks):
        return None
    last = min(waits, key=lambda rank: waits[rank])
    if max(waits.values()) - waits[last] < MIN_WHOLE_SHARE * late.excess.value:
        return None
    found = []
    for phase in evidence.work.phases:
        lateness = evidence.work.lateness(last, phase)
        if lateness is not None and phase not in _FROM_FORWARD:
            found.append(lateness)
    return max(found, key=lambda each: each.excess.value, default=None)


def _find_before_forward(evidence: Evidence, late: Lateness) -> Lateness | None:
    """Return the rank that takes longer before its forward, where no rank waits for another.

    The result is `None` if its own collectives there may be what takes it longer.
    """
    found = []
    for rank in evidence.work.ranks:
        for phase in evidence.work.phases:
            lateness = evidence.work.lateness(rank, phase)
            if lateness is not None and phase not in _FROM_FORWARD:
                found.append(lateness)
    first = max(found, key=lambda each: each.excess.value, default=None)
    if first is None or first.excess.value < MIN_WHOLE_SHARE * late.excess.value:
        return None
    met_ns = evidence.figure(own_collectives_ns).get(first.rank, 0.0)
    return first if met_ns < MIN_TRADED_SHARE * first.excess.value else None


def own_collectives_ns(evidence: Evidence) -> dict[int, float]:
    """Return the time in collectives that the job calls itself in ns per step, by rank."""
    rows = evidence.trace.collectives
    is_broadcast = pc.equal(rows["op"].cast("string"), "broadcast")
    return _ns_by_rank(evidence, rows.filter(pc.and_not(rows["bucket"].is_null(), is_broadcast)))


def broadcast_ns(evidence: Evidence) -> dict[int, float]:
    """Return the time in recorded broadcasts in ns per step, by rank."""
    rows = evidence.trace.collectives
    return _ns_by_rank(evidence, rows.filter(pc.equal(rows["op"].cast("string"), "broadcast")))


def _ns_by_rank(evidence: Evidence, rows: pa.Table) -> dict[int, float]:
    """Return the time of collectives in ns per step, by rank."""
    rows = evidence.select_used(rows)
    rank = rows["rank"].to_numpy()
    length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    found = {}
    for each in np.unique(rank).tolist():
        found[each] = float(length[rank == each].sum()) / len(evidence.used)
    return found
