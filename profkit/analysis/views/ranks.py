"""The ranks of a run beside each other: how long each takes for each phase, who waits for whom, and what the links carry.

All times are means over the used steps, on the host's clock. A rank deviates from the median of the
ranks: with two of them, both deviate equally.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.bandwidth import SizeUse, size_use
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Ints
from profkit.analysis.exchange import (
    LateRank,
    Matched,
    RankExchange,
    exposed_windows,
    find_late_rank,
    match_collectives,
    split_exchange,
)
from profkit.analysis.intervals import covered_each, union_length
from profkit.analysis.kernels.categories import COMMUNICATION
from profkit.analysis.phases import UNKNOWN, step_times
from profkit.analysis.selection import steady_steps
from profkit.errors import UnreadableError
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from profkit.vocab import PHASES


@dataclass(frozen=True)
class RankTimes:
    """One rank's step, in ns: its wall time, and its phases; a phase that it did not record is missing."""

    rank: int
    host: str
    device: str
    wall_ns: float | None
    phase_ns: Mapping[str, float]
    deviation_ns: Mapping[str, float]
    """What each phase takes longer than on the median rank; negative where it takes less."""


@dataclass(frozen=True)
class Wait:
    """How long one rank waits for another a step, and in how many of the collectives it did.

    Several collectives may wait at once; that time counts once. `exposed_ns` is the part that nothing hid.
    """

    rank: int
    late_rank: int
    waiting_ns: float
    exposed_ns: float
    collectives: int


@dataclass(frozen=True)
class WindowCollective:
    """A collective that kernel windows show as a kernel or an operator; means over the ranks that ran it.

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


@dataclass(frozen=True)
class RanksView:
    """All ranks of a run. `waits` is null where some collectives were not seen on all of their ranks."""

    ranks: tuple[RankTimes, ...]
    phases: tuple[str, ...]
    median_ns: Mapping[str, float]
    steps: int
    waits: tuple[Wait, ...] | None
    """Those with most waiting first."""
    collectives: int
    matched: int
    exchange: tuple[RankExchange, ...]
    late_rank: LateRank | None
    sizes: tuple[SizeUse, ...]
    in_windows: tuple[WindowCollective, ...]
    """Those with most time first."""

    @property
    def most_deviating(self) -> tuple[int, str, float] | None:
        """The rank and phase that take longest beyond the median rank; `None` where no rank does."""
        cells = [
            (row.rank, phase, ns)
            for row in self.ranks
            for phase, ns in row.deviation_ns.items()
            if phase != UNKNOWN and ns > 0
        ]
        return max(cells, key=lambda cell: cell[2], default=None)


def build_ranks_view(trace: Trace, ceilings: Ceilings | None = None) -> RanksView:
    """The view of a run; one of a single rank has one row, and nobody waits in it."""
    used = steady_steps(trace).steps
    times = {rank.rank: _rank_times(trace, rank.rank, used) for rank in trace.ranks}
    phases = tuple(
        phase for phase in (*PHASES, UNKNOWN) if any(phase in told for told in times.values())
    )
    median = {
        phase: float(np.median([told[phase] for told in times.values() if phase in told]))
        for phase in phases
    }
    matched = match_collectives(trace.collectives, used)
    exchange = split_exchange(trace.collectives, trace.spans, used)
    return RanksView(
        ranks=tuple(_row(trace, rank, times[rank.rank], median, used) for rank in trace.ranks),
        phases=phases,
        median_ns=median,
        steps=len(used),
        waits=find_waits(matched, trace.spans, used)
        if matched.count == matched.matched_count
        else None,
        collectives=matched.count,
        matched=matched.matched_count,
        exchange=exchange.ranks if exchange else (),
        late_rank=find_late_rank(exchange, trace.steps, trace.spans, used) if exchange else None,
        sizes=size_use(trace.collectives, used, ceilings),
        in_windows=tuple(sorted(_in_windows(trace), key=lambda each: -each.mean_ns * each.calls)),
    )


def _rank_times(trace: Trace, rank: int, used: Ints) -> dict[str, float]:
    """The phases of one rank; nothing where no step is used."""
    if not len(used):
        return {}
    steps, spans = (
        table.filter(pc.equal(table["rank"], rank)) for table in (trace.steps, trace.spans)
    )
    found = step_times(steps, spans, used)
    return {name: float(part.mean()) for name, part in zip(found.names, found.parts, strict=True)}


def _row(
    trace: Trace,
    rank: RankTrace,
    phase_ns: Mapping[str, float],
    median: Mapping[str, float],
    used: Ints,
) -> RankTimes:
    host, device = _place(rank)
    own = trace.steps.filter(pc.equal(trace.steps["rank"], rank.rank))
    wall = (own["end_ns"].to_numpy() - own["start_ns"].to_numpy())[
        np.isin(own["step"].to_numpy(), used)
    ]
    return RankTimes(
        rank=rank.rank,
        host=host,
        device=device,
        wall_ns=float(wall.mean()) if len(wall) else None,
        phase_ns=phase_ns,
        deviation_ns={phase: ns - median[phase] for phase, ns in phase_ns.items()},
    )


def _place(rank: RankTrace) -> tuple[str, str]:
    """Where a rank ran; nothing where its manifest cannot be read."""
    try:
        return rank.manifest.host, rank.manifest.device
    except UnreadableError:
        return "", ""


def find_waits(found: Matched, spans: pa.Table, used: Ints) -> tuple[Wait, ...]:
    """Every rank's waiting, by the rank that was the last to be ready."""
    ready = found.end - found.transfer
    rows = np.flatnonzero(ready > found.start)
    order = rows[np.lexsort((found.late_rank[rows], found.rank[rows]))]
    pairs = (
        np.split(
            order, np.flatnonzero(np.diff(found.rank[order]) | np.diff(found.late_rank[order])) + 1
        )
        if len(order)
        else []
    )
    windows = exposed_windows(spans, used).sort_by("start_ns")
    return tuple(
        sorted(
            (_wait(found, windows, pair, ready[pair], len(used)) for pair in pairs),
            key=lambda wait: -wait.waiting_ns,
        )
    )


def _wait(found: Matched, windows: pa.Table, pair: Ints, ready: Ints, steps: int) -> Wait:
    rank, start = int(found.rank[pair[0]]), found.start[pair]
    own = windows.filter(pc.equal(windows["rank"], rank))
    opens, closes = (own[name].to_numpy() for name in ("start_ns", "end_ns"))
    exposed = float(covered_each(start, ready, opens, closes).sum())
    return Wait(
        rank,
        int(found.late_rank[pair[0]]),
        union_length(start, ready) / steps,
        exposed / steps,
        len(pair),
    )


def _in_windows(trace: Trace) -> Iterator[WindowCollective]:
    """The collectives of the kernel windows by name, of which each rank has one mean."""
    tables = [_communication(rank) for rank in trace.ranks]
    steps = sum(steps for _, steps in tables)
    if not tables:
        return
    whole = pa.concat_tables([table for table, _ in tables])
    for name in sorted(set(whole["name"].to_pylist())):
        rows = whole.filter(pc.equal(whole["name"], name))
        calls, total, in_steps = (
            np.asarray(rows[column].to_numpy(), dtype=np.float64)
            for column in ("calls", "total", "in_steps")
        )
        ranks, means = rows["rank"].to_numpy(), total / calls
        yield WindowCollective(
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


def _communication(rank: RankTrace) -> tuple[pa.Table, int]:
    """A rank's kernels that communicate, by name: calls, time, and time in captured steps; and how many steps were captured."""
    kernels, _ = rank.select("kernels", ("category", "name", "step", "start_ns", "end_ns"))
    steps = len(pc.unique(kernels["step"].drop_null()))
    rows = kernels.filter(pc.equal(kernels["category"], COMMUNICATION))
    length = pc.subtract(rows["end_ns"], rows["start_ns"])
    inside = pc.if_else(rows["step"].is_valid(), length, pa.scalar(0, pa.int64()))
    table = pa.table({"name": rows["name"].cast(pa.string()), "length": length, "inside": inside})
    sums = (
        table.group_by("name")
        .aggregate([("length", "count"), ("length", "sum"), ("inside", "sum")])
        .select(["name", "length_count", "length_sum", "inside_sum"])
    )
    return sums.rename_columns(["name", "calls", "total", "in_steps"]).append_column(
        "rank", pa.array([rank.rank] * sums.num_rows, pa.int64())
    ), steps
