"""The gradient exchange over all ranks: hidden and exposed parts, and who was waited for.

A collective ends on all ranks at about the same time, and begins on each when that rank is ready.
So its shortest duration over the ranks is its transfer, the rest of each rank's duration is
waiting, and the rank with the shortest is the one that the others waited for. This needs durations
only: the ranks' clocks need not agree. Messages between two ranks may be begun early on both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import codes_of, places_of_ranks, rows_of_steps, split_ranks
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import NEGLIGIBLE, Ints
from profkit.frame.intervals import covered_each, union_length
from profkit.frame.lateness import RankWork
from profkit.frame.pipelines import (
    MESSAGES,
    find_pipelines,
    join_stages,
    longest_transfers,
)
from profkit.frame.whole_collectives import group_rows, whole_collectives
from profkit.vocab import Phase


@dataclass(frozen=True)
class RankExchange:
    """One rank's exchange, in ns per step: the parts of its exposed time, and hidden time.

    Waiting and transfer are `None` if some collective was not seen on all of its ranks, and hidden
    time is if buckets have no ends of their own.
    """

    rank: int
    exposed_ns: float
    waiting_ns: float | None
    transfer_ns: float | None
    not_ready_ns: float
    hidden_ns: float | None


@dataclass(frozen=True)
class Exchange:
    """The exchange of a run. `waited_for` is each rank's share of all waiting for it."""

    ranks: tuple[RankExchange, ...]
    waited_for: Mapping[int, float]
    collectives: int
    matched: int
    """The number of collectives that were seen on all ranks that took part."""
    ends_shared: bool = False
    """True if all buckets of a backward have one end; see `is_end_shared`."""

    @property
    def late_rank(self) -> int | None:
        """The rank that causes most of the waiting; `None` if nobody waits."""
        return max(self.waited_for, key=lambda rank: self.waited_for[rank], default=None)


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, and the phase in which it takes longer."""

    rank: int
    share: float
    waited_ns: float
    """The mean time per step that each of the other ranks waits for any rank, not only this one."""
    phase: str
    excess_ns: float
    """How much longer that phase takes per step on it than on the others."""
    also_ns: Mapping[str, float] = field(default_factory=dict)
    """The same for other phases that make much of the waiting, the longest first."""


HOST_BACKENDS = ("gloo", "mpi")
"""Backends whose collectives the host waits for; those of all others only the device sees."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Operations in which not every rank waits for every other one."""

LATE_SHARE = 0.6
"""A rank is named if more than this share of the waiting is for it; else ranks take turns."""

ALSO_SHARE = 0.2
"""A late rank is late in another phase as well from this share of the waiting on."""


def find_late_rank(exchange: Exchange, work: RankWork, step_ns: float) -> LateRank | None:
    """Return the rank that is late again and again, with the phase that makes it so.

    `work` is that of all ranks.

    Waits that are negligible next to a step name nobody: clocks of devices are not as exact.
    """
    rank = exchange.late_rank
    others_ns = [each.waiting_ns for each in exchange.ranks if each.rank != rank]
    waits = [ns for ns in others_ns if ns is not None]
    if rank is None or not waits or exchange.waited_for[rank] < LATE_SHARE:
        return None
    if np.mean(waits) <= NEGLIGIBLE * step_ns:
        return None
    excess = work.over_mean(rank)
    phases = sorted(excess, key=lambda name: -excess[name])
    share, waited_ns = exchange.waited_for[rank], float(np.mean(waits))
    also = {name: excess[name] for name in phases[1:] if excess[name] >= ALSO_SHARE * waited_ns}
    phase = phases[0] if phases else ""
    return LateRank(rank, share, waited_ns, phase, excess.get(phase, 0.0), also)


@dataclass(frozen=True)
class Matched:
    """The collectives of the used steps, with the transfer that their fastest ranks show.

    That of a message is at most what `longest_transfers` allows.
    """

    rank: Ints
    step: Ints
    start: Ints
    end: Ints
    transfer: Ints
    late_rank: Ints
    """The rank that came last, or -1 if the durations do not tell it."""
    group: Ints
    """The collective that each row belongs to, counted from 0."""
    matched: Bools
    is_message: Bools
    """True if only two ranks took part, one of which sent."""
    is_between_stages: Bools
    """True for messages, and if two of the ranks are stages of one pipeline."""
    count: int
    matched_count: int
    ends_shared: bool
    rows: pa.Table
    """The same collectives, as they were recorded."""

    def waited_for(self) -> dict[int, float]:
        """Return each rank's share of all waiting, by the collectives that it was last in.

        Waiting between stages is part of the whole, and for nobody: they end by their schedule.
        """
        counts = self.matched & ((self.late_rank >= 0) | self.is_between_stages)
        waiting = (self.end - self.start - self.transfer) * counts
        total = float(waiting.sum())
        if not (waiting * (self.late_rank >= 0)).any():
            return {}
        is_known = self.late_rank >= 0
        ranks, place = np.unique(self.late_rank[is_known], return_inverse=True)
        sums = np.bincount(place, weights=waiting[is_known])
        return dict(zip(ranks.tolist(), (sums / total).tolist(), strict=True))


def match_collectives(collectives: pa.Table, used: Ints) -> Matched:
    """Group the used steps' collectives over the ranks."""
    return match_all(whole_collectives(collectives, used))


def match_all(rows: pa.Table) -> Matched:
    """Group collectives over the ranks, by communicator and sequence number.

    If some are buckets of gradients, the others count only if all of their ranks recorded them,
    because a job may call collectives of its own on one rank alone. On a device, nobody times the
    wait for those, so they do not count there.
    """
    is_bucket = rows["bucket"].is_valid().to_numpy()
    shared = np.zeros(len(is_bucket), dtype=bool)
    shared[is_bucket] = is_end_shared(rows.filter(pa.array(is_bucket)))
    if shared.any():
        rows, is_bucket = rows.filter(pa.array(~shared)), is_bucket[~shared]
    pipelines = find_pipelines(rows)
    group, quickest, matched = group_rows(rows)
    by_host = pc.is_in(rows["backend"].cast(pa.string()), pa.array(HOST_BACKENDS)).to_numpy()
    counts = is_bucket | (matched[group] & by_host)
    if is_bucket.any() and not counts.all():
        rows = rows.filter(pa.array(counts))
        group, quickest, matched = group_rows(rows)
    rank = rows["rank"].to_numpy().astype(np.int64)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    late = rank[quickest]
    # With more than two ranks, one that has nobody to wait for may be quick and not late.
    rooted = pc.is_in(rows["op"].cast(pa.string()), pa.array(ROOTED)).to_numpy()
    late[rooted[quickest] & (rows["group_size"].to_numpy()[quickest] > 2)] = -1
    is_message = pc.is_in(rows["op"].cast(pa.string()), pa.array(MESSAGES)).to_numpy()
    joins = join_stages(pipelines, rank, group, len(quickest)) | is_message[quickest]
    late[joins] = -1
    length = (end - start)[quickest]
    if is_message.any():
        longest = longest_transfers(rows, group, len(quickest))
        length = np.minimum(length, longest).astype(np.int64)
    return Matched(
        rank=rank,
        step=rows["step"].fill_null(-1).to_numpy(),
        start=start,
        end=end,
        transfer=length[group],
        late_rank=late[group],
        group=group,
        matched=matched[group],
        is_message=is_message,
        is_between_stages=joins[group],
        count=len(quickest),
        matched_count=int(matched.sum()),
        ends_shared=bool(shared.any()),
        rows=rows,
    )


def is_end_shared(rows: pa.Table, *, with_last: bool = False) -> Bools:
    """Return which gradient buckets end only with a later one, as far as the rows tell.

    From outside of Paddle's reducer, only the end of all buckets of a backward is seen. Then the
    last bucket stands for the exchange: it waits until the last rank is ready for it. Its end is
    its own, but not its transfer, which begins after those of the others (`with_last`).
    """
    bucket = rows["bucket"].is_valid().to_numpy()
    sequence, communicator = rows["sequence"].to_numpy(), codes_of(rows["communicator"])
    again = bucket[:-1] & bucket[1:]  # a rank writes its buckets in their order
    for column in (rows["rank"].to_numpy(), communicator, rows["end_ns"].to_numpy()):
        again &= column[:-1] == column[1:]
    shared = np.zeros(len(bucket), dtype=bool)
    if again.any():
        _, place = np.unique(sequence, return_inverse=True)
        key = communicator * (int(place.max()) + 1) + place
        found = key[:-1][again]
        if with_last:
            found = np.append(found, key[1:][again])
        shared = bucket & np.isin(key, found)
    return shared


def split_exchange(collectives: pa.Table, spans: pa.Table, used: Ints) -> Exchange | None:
    """Split the exposed exchange of the `used` steps; `None` if no rank recorded collectives."""
    found = match_collectives(collectives, used)
    if not found.count or not len(used):
        return None
    windows, ranks = split_ranks(exposed_windows(spans, used)), []
    for rank, mine in places_of_ranks(found.rank).items():
        ranks.append(_split_rank(rank, mine, found, windows[rank], len(used)))
    return Exchange(
        tuple(ranks), found.waited_for(), found.count, found.matched_count, found.ends_shared
    )


def exposed_windows(spans: pa.Table, used: Ints) -> pa.Table:
    """Return the exposed exchange of each step: inside it, nothing but the exchange went on.

    On a rank whose device was timed, the host's time in a collective is only that of its launch.
    """
    exposed = spans.filter(pc.equal(spans["phase"], Phase.ALLREDUCE.value))
    exposed = rows_of_steps(exposed, used)
    if "device_start_ns" in exposed.schema.names:
        start, end = exposed["device_start_ns"], exposed["device_end_ns"]
        timed = pc.and_(start.is_valid(), end.is_valid())
        on_device = pc.is_in(exposed["rank"], pc.unique(exposed["rank"].filter(timed)))
        for name, device in (("start_ns", start), ("end_ns", end)):
            place = exposed.schema.get_field_index(name)
            own = pc.coalesce(device, exposed[name])
            exposed = exposed.set_column(place, exposed.schema.field(name), own)
        exposed = exposed.filter(pc.or_(timed, pc.invert(on_device)))
    return exposed


def _split_rank(
    rank: int, mine: Ints, found: Matched, windows: pa.Table, steps: int
) -> RankExchange:
    own = windows.sort_by("start_ns")
    opens, closes = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    start, end = found.start[mine], found.end[mine]
    sent_from = np.maximum(start, end - found.transfer[mine])
    flying = float(covered_each(start, end, opens, closes).sum())
    moving = float(covered_each(sent_from, end, opens, closes).sum())
    exposed = float((closes - opens).sum())
    waiting = transfer = None
    if found.count == found.matched_count:
        waiting, transfer = (flying - moving) / steps, moving / steps
    hidden = None if found.ends_shared else (union_length(start, end) - flying) / steps
    return RankExchange(
        rank=rank,
        exposed_ns=exposed / steps,
        waiting_ns=waiting,
        transfer_ns=transfer,
        not_ready_ns=(exposed - flying) / steps,
        hidden_ns=hidden,
    )
