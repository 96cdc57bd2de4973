"""The ranks of a run compared: time per phase, who waits for whom, and use of the links.

All times are means over the used steps, of phases on the device's clock if it was read. A rank
deviates from the median of the ranks: with two of them, both deviate equally.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.bandwidth import SizeUse, size_use
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.categories import COMMUNICATION
from profkit.analysis.place_costs import ShardedExchange, sharded_exchange
from profkit.errors import UnreadableError
from profkit.frame.columns import split_ranks
from profkit.frame.estimate import Ints
from profkit.frame.exchange import (
    LateRank,
    Matched,
    RankExchange,
    exposed_windows,
    match_collectives,
)
from profkit.frame.intervals import covered_each, union_length
from profkit.frame.notices import is_log, others_in_log
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from profkit.vocab import PHASES


@dataclass(frozen=True)
class RankTimes:
    """One rank's step, in ns: its wall time, and those phases that it recorded."""

    rank: int
    host: str
    device: str
    wall_ns: float | None
    phase_ns: Mapping[str, float]
    deviation_ns: Mapping[str, float]
    """The difference of each phase from the median rank."""


@dataclass(frozen=True)
class Wait:
    """The time per step that one rank waits for another, in so many of the collectives.

    Several collectives may wait at once; that time counts once. `exposed_ns` is the part that
    nothing hid.
    """

    rank: int
    late_rank: int
    waiting_ns: float
    exposed_ns: float
    collectives: int


@dataclass(frozen=True)
class RanksView:
    """All ranks of a run. `waits` is null if collectives were not seen on all their ranks."""

    ranks: tuple[RankTimes, ...]
    phases: tuple[str, ...]
    median_ns: Mapping[str, float]
    steps: int
    waits: tuple[Wait, ...] | None
    """Those with most waiting first."""
    why_no_waits: str
    """The reason if it is not known who waits."""
    collectives: int
    matched: int
    exchange: tuple[RankExchange, ...]
    late_rank: LateRank | None
    sizes: tuple[SizeUse, ...]
    in_windows: tuple[WindowCollective, ...]
    """Those with most time first."""
    sharded: ShardedExchange | None
    """The exchange by dimension, if the job is sharded and its waits were timed."""

    @property
    def most_deviating(self) -> tuple[int, str, float] | None:
        """The rank and phase farthest above the median rank; `None` if there is none."""
        cells = []
        for row in self.ranks:
            for phase, ns in row.deviation_ns.items():
                if phase != UNKNOWN and ns > 0:
                    cells.append((row.rank, phase, ns))
        return max(cells, key=lambda cell: cell[2], default=None)


def build_ranks_view(trace: Trace, ceilings: Ceilings | None = None) -> RanksView:
    """Return the view of a run; one of a single rank has one row, and nobody waits in it."""
    frame = frame_of(trace)
    basis, used = frame.basis, frame.basis.used
    phase_ns = {rank.rank: frame.means_of(rank.rank, used) for rank in trace.ranks}
    median: dict[str, float] = {}
    for phase in (*PHASES, UNKNOWN):
        known = [times[phase] for times in phase_ns.values() if phase in times]
        if known:
            median[phase] = float(np.median(known))
    ranks = [_rank_times(trace, rank, phase_ns[rank.rank], median, used) for rank in trace.ranks]
    found = match_collectives(trace.collectives, used)
    exchange = basis.exchange
    waits = None
    why_no_waits = basis.why_no_exchange if found.count else ""
    if found.count > found.matched_count and not why_no_waits:
        missing = found.count - found.matched_count
        why_no_waits = f"{missing:,} of {found.count:,} collectives were not recorded on all ranks"
    others = trace.manifest.world_size - 1
    if is_log(trace) and others > 0:
        why_no_waits = others_in_log(trace.manifest.config, others)
    if not why_no_waits:
        waits = find_waits(found, basis.spans, used)
    return RanksView(
        ranks=tuple(ranks),
        phases=tuple(median),
        median_ns=median,
        steps=len(used),
        waits=waits,
        why_no_waits=why_no_waits,
        collectives=found.count,
        matched=found.matched_count,
        exchange=exchange.ranks if exchange else (),
        late_rank=basis.late_rank,
        sizes=size_use(trace.collectives, used, ceilings),
        in_windows=window_collectives(trace),
        sharded=sharded_exchange(trace, basis),
    )


def _rank_times(
    trace: Trace,
    rank: RankTrace,
    phase_ns: Mapping[str, float],
    median: Mapping[str, float],
    used: Ints,
) -> RankTimes:
    host = device = ""
    with contextlib.suppress(UnreadableError):
        host, device = rank.manifest.host, rank.manifest.device
    walls_ns = frame_of(trace).walls_ns.get(rank.rank)
    wall_ns = walls_ns[frame_of(trace).places(used)] if walls_ns is not None else np.empty(0)
    return RankTimes(
        rank=rank.rank,
        host=host,
        device=device,
        wall_ns=float(wall_ns.mean()) if len(wall_ns) else None,
        phase_ns=phase_ns,
        deviation_ns={phase: ns - median[phase] for phase, ns in phase_ns.items()},
    )


def find_waits(found: Matched, spans: pa.Table, used: Ints) -> tuple[Wait, ...]:
    """Return every rank's waiting, by the rank that was the last to be ready, if it is known."""
    ready = found.end - found.transfer
    rows = np.flatnonzero((ready > found.start) & (found.late_rank >= 0))
    if not len(rows):
        return ()
    windows = split_ranks(exposed_windows(spans, used).sort_by("start_ns"))
    order = rows[np.lexsort((found.late_rank[rows], found.rank[rows]))]
    changes = np.diff(found.rank[order]) | np.diff(found.late_rank[order])
    waits = []
    for pair in np.split(order, np.flatnonzero(changes) + 1):
        rank, start = int(found.rank[pair[0]]), found.start[pair]
        own = windows[rank]
        opens, closes = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        exposed_ns = float(covered_each(start, ready[pair], opens, closes).sum())
        waits.append(
            Wait(
                rank=rank,
                late_rank=int(found.late_rank[pair[0]]),
                waiting_ns=union_length(start, ready[pair]) / len(used),
                exposed_ns=exposed_ns / len(used),
                collectives=len(pair),
            )
        )
    return tuple(sorted(waits, key=lambda wait: -wait.waiting_ns))


# Collectives that kernel windows show as kernels or operators.
@dataclass(frozen=True)
class WindowCollective:
    """A collective in the kernel windows; times are means over the ranks that ran it.

    On the rank where it is shortest it has waited least for the others.
    """

    name: str
    ranks: int
    calls: int
    mean_ns: float
    shortest_rank: int
    shortest_rank_ns: float
    longest_rank: int
    longest_rank_ns: float
    ns_per_step: float | None

    @classmethod
    def sum_up(cls, name: str, rows: pa.Table, steps: int) -> WindowCollective:
        """Sum up the ranks' rows of one collective."""
        calls = np.asarray(rows["calls"].to_numpy(), dtype=np.float64)
        total = np.asarray(rows["total"].to_numpy(), dtype=np.float64)
        in_steps = np.asarray(rows["in_steps"].to_numpy(), dtype=np.float64)
        ranks, means = rows["rank"].to_numpy(), total / calls
        return cls(
            name=name,
            ranks=len(ranks),
            calls=int(calls.sum()),
            mean_ns=float(total.sum() / calls.sum()),
            shortest_rank=int(ranks[means.argmin()]),
            shortest_rank_ns=float(means.min()),
            longest_rank=int(ranks[means.argmax()]),
            longest_rank_ns=float(means.max()),
            ns_per_step=float(in_steps.sum()) / steps if steps else None,
        )


def window_collectives(trace: Trace) -> tuple[WindowCollective, ...]:
    """Return the collectives of the kernel windows by name, those with most time first."""
    tables, steps = [], 0
    for rank in trace.ranks:
        table, captured = _communication(rank)
        tables.append(table)
        steps += captured
    if not tables:
        return ()
    whole = pa.concat_tables(tables)
    found = []
    for name in sorted(set(whole["name"].to_pylist())):
        rows = whole.filter(pc.equal(whole["name"], name))
        found.append(WindowCollective.sum_up(name, rows, steps))
    return tuple(sorted(found, key=lambda each: -each.mean_ns * each.calls))


def _communication(rank: RankTrace) -> tuple[pa.Table, int]:
    """Return a rank's communication kernels by name, and the number of captured steps.

    Of each name there are the calls, their time, and their time in captured steps.
    """
    kernels, _ = rank.select("kernels", ("category", "name", "step", "start_ns", "end_ns"))
    steps = len(pc.unique(kernels["step"].drop_null()))
    rows = kernels.filter(pc.equal(kernels["category"], COMMUNICATION))
    length = pc.subtract(rows["end_ns"], rows["start_ns"])
    inside = pc.if_else(rows["step"].is_valid(), length, pa.scalar(0, pa.int64()))
    table = pa.table({"name": rows["name"].cast(pa.string()), "length": length, "inside": inside})
    sums = table.group_by("name").aggregate(
        [("length", "count"), ("length", "sum"), ("inside", "sum")]
    )
    sums = sums.select(["name", "length_count", "length_sum", "inside_sum"])
    sums = sums.rename_columns(["name", "calls", "total", "in_steps"])
    return sums.append_column("rank", pa.array([rank.rank] * sums.num_rows, pa.int64())), steps
