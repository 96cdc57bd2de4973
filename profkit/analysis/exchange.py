"""The gradient exchange over all ranks: what was hidden, what was exposed, and who was waited for.

A collective ends on all ranks at about the same time, and begins on each when that rank is ready. So
its shortest duration over the ranks is its transfer, the rest of each rank's duration is waiting,
and the rank with the shortest is the one that the others waited for. Durations alone say so: the
ranks' clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.phases import step_times
from profkit.vocab import Phase


@dataclass(frozen=True)
class RankExchange:
    """One rank's exchange, in ns a step: exposed time in its three parts, and what backward hid.

    Waiting and transfer are `None` where some collective was not seen on all of its ranks.
    """

    rank: int
    exposed_ns: float
    waiting_ns: float | None
    transfer_ns: float | None
    not_ready_ns: float
    hidden_ns: float


@dataclass(frozen=True)
class Exchange:
    """The exchange of a run. `waited_for` says for each rank which share of all waiting was for it."""

    ranks: tuple[RankExchange, ...]
    waited_for: Mapping[int, float]
    collectives: int
    matched: int
    """How many of the collectives were seen on all ranks that took part."""

    @property
    def late_rank(self) -> int | None:
        """The rank that causes most of the waiting; `None` where nobody waits."""
        return (
            max(self.waited_for, key=lambda rank: self.waited_for[rank])
            if self.waited_for
            else None
        )


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for: how much of all waiting is for it, and in which phase it takes longer."""

    rank: int
    share: float
    waited_ns: float
    """What each of the other ranks waits a step, on average."""
    phase: str
    excess_ns: float
    """How much longer that phase takes on it than on the others, a step."""


LATE_SHARE = 0.6
"""A rank is named when more than this share of the waiting is for it; else ranks take turns at being late."""


def find_late_rank(
    exchange: Exchange, steps: pa.Table, spans: pa.Table, used: Ints
) -> LateRank | None:
    """The rank that is late again and again, with the phase that makes it so; `None` where there is none."""
    rank = exchange.late_rank
    waits = [
        each.waiting_ns
        for each in exchange.ranks
        if each.rank != rank and each.waiting_ns is not None
    ]
    if rank is None or not waits or exchange.waited_for[rank] < LATE_SHARE:
        return None
    own, others = (
        _mean_parts(steps.filter(chosen(steps)), spans.filter(chosen(spans)), used)
        for chosen in _only_and_without(rank)
    )
    excess = {
        phase: own[phase] - others.get(phase, 0.0)
        for phase in own
        if phase != Phase.ALLREDUCE.value
    }
    phase = max(excess, key=lambda name: excess[name], default="")
    return LateRank(
        rank, exchange.waited_for[rank], float(np.mean(waits)), phase, excess.get(phase, 0.0)
    )


def _only_and_without(
    rank: int,
) -> tuple[Callable[[pa.Table], pa.Array], Callable[[pa.Table], pa.Array]]:
    return lambda table: pc.equal(table["rank"], rank), lambda table: pc.not_equal(
        table["rank"], rank
    )


def _mean_parts(steps: pa.Table, spans: pa.Table, used: Ints) -> dict[str, float]:
    times = step_times(steps, spans, used)
    return {name: float(part.mean()) for name, part in zip(times.names, times.parts, strict=True)}


@dataclass(frozen=True)
class Matched:
    """The collectives of the used steps, with the transfer that each one's fastest rank shows."""

    rank: Ints
    step: Ints
    start: Ints
    end: Ints
    transfer: Ints
    late_rank: Ints
    group: Ints
    """Which collective each row is of, counted from 0."""
    matched: npt.NDArray[np.bool_]
    count: int
    matched_count: int


def split_exchange(collectives: pa.Table, spans: pa.Table, used: Ints) -> Exchange | None:
    """Split the exposed exchange of the `used` steps; `None` where no rank recorded any collectives."""
    parts = match_collectives(collectives, used)
    if not parts.count or not len(used):
        return None
    windows = exposed_windows(spans, used)
    ranks = tuple(
        _split_rank(int(rank), parts, windows, len(used)) for rank in np.unique(parts.rank)
    )
    return Exchange(ranks, _waited_for(parts), parts.count, parts.matched_count)


def _of_buckets(rows: pa.Table) -> pa.Table:
    """The gradient exchange alone, where the rows tell it from the collectives that a job calls itself."""
    buckets = rows.filter(rows["bucket"].is_valid())
    return buckets if buckets.num_rows else rows


def _of_steps(rows: pa.Table, used: Ints) -> pa.Table:
    """The rows of these steps. Given a numpy array, `pa.array` would import pandas where it is installed."""
    return rows.filter(pc.is_in(rows["step"], pa.array(used.tolist(), pa.int64())))


def match_collectives(collectives: pa.Table, used: Ints) -> Matched:
    """Bring the rows of each collective of the used steps together: equal communicator and sequence."""
    rows = _of_buckets(_of_steps(collectives, used))
    rank, start, end, sequence, size = (
        rows[name].to_numpy().astype(np.int64)
        for name in ("rank", "start_ns", "end_ns", "sequence", "group_size")
    )
    communicator = rows["communicator"].combine_chunks().indices.to_numpy() if len(rank) else rank
    order = np.lexsort((end - start, sequence, communicator))
    first = np.ones(len(order), dtype=bool)
    first[1:] = (np.diff(communicator[order]) != 0) | (np.diff(sequence[order]) != 0)
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(first) - 1
    quickest = order[first]  # sorted by duration within the collective
    matched = np.bincount(group, minlength=len(quickest)) == size[quickest]
    transfer = (end - start)[quickest][group]
    return Matched(
        rank,
        rows["step"].to_numpy(),
        start,
        end,
        transfer,
        rank[quickest][group],
        group,
        matched[group],
        len(quickest),
        int(matched.sum()),
    )


def exposed_windows(spans: pa.Table, used: Ints) -> pa.Table:
    """The exposed part of each backward: inside it, nothing but the exchange was going on."""
    exposed = _of_steps(spans.filter(pc.equal(spans["phase"], Phase.ALLREDUCE.value)), used)
    return exposed.select(["rank", "step", "start_ns", "end_ns"])


def _split_rank(rank: int, parts: Matched, windows: pa.Table, steps: int) -> RankExchange:
    mine = parts.rank == rank
    own = windows.filter(pc.equal(windows["rank"], rank)).sort_by("start_ns")
    opens, closes = (own[name].to_numpy() for name in ("start_ns", "end_ns"))
    start, end = parts.start[mine], parts.end[mine]
    sent_from = np.maximum(start, end - parts.transfer[mine])
    flying = covered(start, end, opens, closes)
    moving = covered(sent_from, end, opens, closes)
    exposed = float((closes - opens).sum())
    hidden = covered(start, end, start[:0], start[:0], everywhere=True) - flying
    known = parts.count == parts.matched_count
    waiting, transfer = ((flying - moving) / steps, moving / steps) if known else (None, None)
    return RankExchange(
        rank, exposed / steps, waiting, transfer, (exposed - flying) / steps, hidden / steps
    )


def covered(
    starts: Ints, ends: Ints, opens: Ints, closes: Ints, *, everywhere: bool = False
) -> float:
    """How much of the windows lies under at least one interval; with `everywhere`, how much time does at all.

    The windows must be sorted and apart from each other.
    """
    if not len(starts):
        return 0.0
    if everywhere:
        lows, highs = union(starts, ends)
        return float((highs - lows).sum())
    return float(covered_each(starts, ends, opens, closes).sum())


def covered_each(starts: Ints, ends: Ints, opens: Ints, closes: Ints) -> Floats:
    """For each window, how much of it lies under at least one interval."""
    if not len(starts):
        return np.zeros(len(opens))
    lows, highs = union(starts, ends)
    return np.asarray(_measure_below(closes, lows, highs) - _measure_below(opens, lows, highs))


def union(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Intervals that touch or overlap, joined; sorted and apart."""
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), dtype=bool)
    opens[1:] = starts[1:] > reach[:-1]
    last = np.append(np.flatnonzero(opens)[1:] - 1, len(starts) - 1)
    return starts[opens], reach[last]


def _measure_below(points: Ints, lows: Ints, highs: Ints) -> Floats:
    """For each point, how much of the joined intervals lies before it."""
    before = np.concatenate([[0], np.cumsum(highs - lows)])
    place = np.searchsorted(lows, points, side="right")
    beyond = np.maximum(0, highs[np.maximum(place - 1, 0)] - points) * (place > 0)
    return np.asarray(before[place] - beyond, dtype=np.float64)


def _waited_for(parts: Matched) -> dict[int, float]:
    """Each rank's share of all waiting, by the collectives in which it was the last to be ready."""
    waiting = (parts.end - parts.start - parts.transfer) * parts.matched
    total = float(waiting.sum())
    if total <= 0:
        return {}
    ranks = np.unique(parts.late_rank)
    return {int(rank): float(waiting[parts.late_rank == rank].sum()) / total for rank in ranks}
