"""The gradient exchange over all ranks: hidden and exposed parts, and who was waited for.

A collective ends on all ranks at about the same time, and begins on each when that rank is ready.
So its shortest duration over the ranks is its transfer, the rest of each rank's duration is
waiting, and the rank with the shortest is the one that the others waited for. This needs durations
only: the ranks' clocks need not agree. Messages between two ranks may be begun early on both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.calls import Calls
from profkit.frame.columns import (
    codes_of,
    equals,
    places_of_ranks,
    rows_of_steps,
    split_ranks,
    step_places,
)
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import NEGLIGIBLE, Floats, Ints, binomial_bound
from profkit.frame.intervals import covered_by, covered_each, union
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
    late_steps: Mapping[int, int] = field(default_factory=dict)
    """In how many steps most of the waiting was for each rank."""

    @property
    def late_rank(self) -> int | None:
        """The rank that causes most of the waiting; `None` if nobody waits."""
        return max(self.waited_for, key=lambda rank: self.waited_for[rank], default=None)

    def is_late(self, rank: int) -> bool:
        """Return true if a rank is late again and again, in more steps than it may be by chance."""
        is_most = self.waited_for[rank] >= LATE_SHARE
        return is_most and not by_chance(self.late_steps, rank, len(self.ranks))


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

MOST_BY_CHANCE = 0.05
"""Of ranks that are alike, one is waited for most in most steps at most this often."""

FEWEST_STEPS = 5
"""Of fewer steps, even all together may be chance: there the share of the waiting decides."""

ALSO_SHARE = 0.2
"""A late rank is late in another phase as well from this share of the waiting on."""


def find_late_rank(exchange: Exchange, work: RankWork, step_ns: float) -> LateRank | None:
    """Return the rank that is late again and again, with the phase that makes it so.

    `work` is that of all ranks.

    Waits that are negligible next to a step name nobody: clocks of devices are not as exact. Nor
    does a rank that the others waited for in as many steps as ranks that are alike may by chance.
    """
    rank = exchange.late_rank
    others_ns = [each.waiting_ns for each in exchange.ranks if each.rank != rank]
    waits = [ns for ns in others_ns if ns is not None]
    if rank is None or not waits or not exchange.is_late(rank):
        return None
    if np.mean(waits) <= NEGLIGIBLE * step_ns:
        return None
    excess = work.over_mean(rank)
    phases = sorted(excess, key=lambda name: -excess[name])
    share, waited_ns = exchange.waited_for[rank], float(np.mean(waits))
    also = {name: excess[name] for name in phases[1:] if excess[name] >= ALSO_SHARE * waited_ns}
    phase = ""
    if phases:
        phase = phases[0]
    return LateRank(rank, share, waited_ns, phase, excess.get(phase, 0.0), also)


class OfRank(NamedTuple):
    """One rank's collectives of the used steps."""

    start: Ints
    end: Ints
    transfer: Ints
    step: Ints


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

    @property
    def has_messages(self) -> bool:
        return bool(self.is_message.any())

    def by_rank(self) -> Iterator[tuple[int, OfRank]]:
        """Yield each rank's collectives."""
        for rank, mine in places_of_ranks(self.rank).items():
            columns = self.start, self.end, self.transfer, self.step
            yield rank, OfRank(*(column[mine] for column in columns))

    def last_in(self) -> dict[int, int]:
        """Return how many collectives each rank was the last one in."""
        ranks, counts = np.unique(self.rank[self.rank == self.late_rank], return_counts=True)
        return dict(zip(ranks.tolist(), counts.tolist(), strict=True))

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

    def late_steps(self) -> dict[int, int]:
        waiting = (self.end - self.start - self.transfer) * self.matched
        return count_late_steps(self.step, self.late_rank, waiting)


@dataclass(frozen=True)
class MatchedCalls:
    """The same of ranks that all made the same calls."""

    calls: Calls
    transfer: Ints
    """By call."""
    late_rank: Ints
    waiting: Ints
    """What all ranks together waited for each call."""
    ends_shared = has_messages = False

    @classmethod
    def of(cls, calls: Calls) -> MatchedCalls:
        """Match calls as `match_all` does."""
        is_bucket, by_host = (each(calls.layout) for each in (_is_bucket, _is_by_host))
        if is_bucket.any():
            calls = calls.take(is_bucket | by_host)
        count = calls.layout.num_rows
        transfer, late = np.empty(0, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        whole = np.zeros(count, dtype=np.int64)
        for rank, (start, end) in zip(calls.ranks, calls.times(), strict=True):
            length = end - start
            whole += length
            if rank == calls.ranks[0]:
                transfer, is_quickest = length, np.ones(count, dtype=bool)
            else:
                is_quickest = length < transfer
            transfer = np.minimum(transfer, length)
            late[is_quickest] = rank
        late[_is_rooted(calls.layout) & (len(calls.ranks) > 2)] = -1
        return cls(calls, transfer, late, whole - len(calls.ranks) * transfer)

    @property
    def count(self) -> int:
        return len(self.transfer)

    matched_count = count

    def by_rank(self) -> Iterator[tuple[int, OfRank]]:
        step = self.calls.layout["step"].to_numpy()
        for rank, (start, end) in zip(self.calls.ranks, self.calls.times(), strict=True):
            yield rank, OfRank(start, end, self.transfer, step)

    def last_in(self) -> dict[int, int]:
        ranks, counts = np.unique(self.late_rank[self.late_rank >= 0], return_counts=True)
        return dict(zip(ranks.tolist(), counts.tolist(), strict=True))

    def waited_for(self) -> dict[int, float]:
        known = self.late_rank >= 0
        total = float(self.waiting[known].sum())
        if not total:
            return {}
        ranks, place = np.unique(self.late_rank[known], return_inverse=True)
        sums = np.bincount(place, weights=self.waiting[known])
        return dict(zip(ranks.tolist(), (sums / total).tolist(), strict=True))

    def late_steps(self) -> dict[int, int]:
        return count_late_steps(self.calls.layout["step"].to_numpy(), self.late_rank, self.waiting)


def count_late_steps(step: Ints, late: Ints, waiting: Ints) -> dict[int, int]:
    """Return in how many steps most of the waiting was for each rank.

    `late` is the rank that came last in each collective, or -1.
    """
    known = (late >= 0) & (waiting > 0)
    if not known.any():
        return {}
    ranks, place = np.unique(late[known], return_inverse=True)
    steps, own = np.unique(step[known], return_inverse=True)
    pairs, pair = np.unique(own * len(ranks) + place, return_inverse=True)
    sums = np.bincount(pair, weights=waiting[known])
    order = np.lexsort((sums, pairs // len(ranks)))
    last = order[np.searchsorted(pairs[order] // len(ranks), np.arange(len(steps)), "right") - 1]
    counts = np.bincount(pairs[last] % len(ranks), minlength=len(ranks))
    return dict(zip(ranks.tolist(), counts.tolist(), strict=True))


def by_chance(late_steps: Mapping[int, int], rank: int, ranks: int) -> bool:
    """Return true if a rank may be waited for most in so many steps although all are alike."""
    hits, steps = late_steps.get(rank, 0), sum(late_steps.values())
    if steps < FEWEST_STEPS:
        return False
    return binomial_bound(hits, steps - hits, 1 / max(2, ranks)) > MOST_BY_CHANCE


def match_run(collectives: pa.Table | Calls, used: Ints) -> Matched | MatchedCalls:
    """Group the used steps' collectives over the ranks, whichever way they are kept."""
    if isinstance(collectives, Calls):
        return MatchedCalls.of(collectives.of_steps(used))
    return match_collectives(collectives, used)


def match_collectives(collectives: pa.Table, used: Ints) -> Matched:
    """Group the used steps' collectives over the ranks."""
    return match_all(whole_collectives(collectives, used))


def _is_bucket(rows: pa.Table) -> Bools:
    return np.asarray(rows["bucket"].is_valid().to_numpy())


def _is_by_host(rows: pa.Table) -> Bools:
    return _is_one_of(rows["backend"], HOST_BACKENDS)


def _is_rooted(rows: pa.Table) -> Bools:
    return _is_one_of(rows["op"], ROOTED)


def _is_one_of(column: pa.ChunkedArray, names: Sequence[str]) -> Bools:
    return np.asarray(pc.is_in(column.cast(pa.string()), pa.array(names)).to_numpy())


def match_all(rows: pa.Table) -> Matched:
    """Group collectives over the ranks, by communicator and sequence number.

    If some are buckets of gradients, the others count only if all of their ranks recorded them,
    because a job may call collectives of its own on one rank alone. On a device, nobody times the
    wait for those, so they do not count there.
    """
    is_bucket = _is_bucket(rows)
    shared = np.zeros(len(is_bucket), dtype=bool)
    shared[is_bucket] = is_end_shared(rows.filter(pa.array(is_bucket)))
    if shared.any():
        rows, is_bucket = rows.filter(pa.array(~shared)), is_bucket[~shared]
    pipelines = find_pipelines(rows)
    group, quickest, matched = group_rows(rows)
    counts = is_bucket | (matched[group] & _is_by_host(rows))
    if is_bucket.any() and not counts.all():
        rows = rows.filter(pa.array(counts))
        group, quickest, matched = group_rows(rows)
    rank = rows["rank"].to_numpy().astype(np.int64)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    late = rank[quickest]
    # With more than two ranks, one that has nobody to wait for may be quick and not late.
    late[_is_rooted(rows)[quickest] & (rows["group_size"].to_numpy()[quickest] > 2)] = -1
    is_message = _is_one_of(rows["op"], MESSAGES)
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


class Exposure(NamedTuple):
    """Not ready, waiting, in transfer, and hidden: how ranks spent their exchange."""

    found: Matched | MatchedCalls
    by_rank: Mapping[int, Floats]
    """Four sums for each rank."""
    by_step: Floats
    """The same four over all ranks, for each used step."""


def expose(collectives: pa.Table | Calls, spans: pa.Table, used: Ints) -> Exposure:
    """Compare the collectives of the `used` steps with the spans of the exposed exchange."""
    found = match_run(collectives, used)
    by_rank: dict[int, Floats] = {}
    by_step = np.zeros((4, len(used)))
    if found.count and len(used):
        windows = split_ranks(exposed_windows(spans, used))
        for rank, own in found.by_rank():
            parts = _split_rank(own, windows[rank].sort_by("start_ns"), used)
            by_rank[rank] = parts.sum(axis=1)
            by_step += parts
    return Exposure(found, by_rank, by_step)


def split_exchange(exposure: Exposure) -> Exchange | None:
    """Return the exposed exchange of each rank; `None` if no rank recorded collectives."""
    found, steps = exposure.found, exposure.by_step.shape[1]
    if not exposure.by_rank:
        return None
    is_whole, ranks = found.count == found.matched_count, []
    for rank, sums in exposure.by_rank.items():
        not_ready, waiting, transfer, hidden = (sums / steps).tolist()
        part = RankExchange(rank, float(sums[:3].sum()) / steps, None, None, not_ready, None)
        if is_whole:
            part = dataclasses.replace(part, waiting_ns=waiting, transfer_ns=transfer)
        if not found.ends_shared:
            part = dataclasses.replace(part, hidden_ns=hidden)
        ranks.append(part)
    return Exchange(
        tuple(ranks),
        found.waited_for(),
        found.count,
        found.matched_count,
        found.ends_shared,
        found.late_steps(),
    )


def exposed_windows(spans: pa.Table, used: Ints) -> pa.Table:
    """Return the exposed exchange of each step: inside it, nothing but the exchange went on.

    On a rank whose device was timed, the host's time in a collective is only that of its launch.
    Spans without a phase are those of the exchange.
    """
    exposed = spans
    if "phase" in spans.schema.names:
        exposed = spans.filter(pa.array(equals(spans["phase"], Phase.ALLREDUCE.value)))
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


def _split_rank(own: OfRank, windows: pa.Table, used: Ints) -> Floats:
    """Return a rank's time not ready, waiting, in transfer and hidden, by (kind, step)."""
    opens, closes = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    lows, highs = union(own.start, own.end)
    sent_from = np.maximum(own.start, own.end - own.transfer)
    in_flight = covered_by(lows, highs, opens, closes)
    moving = covered_each(sent_from, own.end, opens, closes)
    place, parts = step_places(windows, used), np.zeros((4, len(used)))
    for row, times in enumerate((closes - opens - in_flight, in_flight - moving, moving)):
        parts[row] = np.bincount(place, weights=times, minlength=len(used))
    order = np.argsort(own.start, kind="stable")
    opener = order[np.searchsorted(own.start[order], lows, side="left")]
    step = np.searchsorted(used, own.step[opener])
    flying = np.bincount(step, weights=highs - lows, minlength=len(used))
    parts[3] = flying - parts[1] - parts[2]
    return parts
