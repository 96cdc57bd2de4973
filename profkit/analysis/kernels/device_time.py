"""Time in which each device was busy, computed, communicated, and communicated unhidden.

All of the device's work counts, even if its step or launch is unknown. Kernels overlap, so times
are lengths of unions of intervals. Everything is in whole nanoseconds and exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.kernels.categories import COMMUNICATION, COPY_CATEGORIES, MEMSET
from profkit.analysis.kernels.idle import (
    HOST,
    LATE,
    SYNCHRONISED,
    Gaps,
    device_lanes,
    find_gaps,
    idle_reasons,
)
from profkit.frame.columns import names_and_codes, places_of_ranks
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exchange import match_all
from profkit.frame.intervals import (
    common_parts,
    covered_each,
    split_lanes,
    subtract_union,
    union_length,
)

_MOVES = frozenset({*COPY_CATEGORIES.values(), "copy", MEMSET})
COMPUTING, COMMUNICATING, MOVING = range(3)
Bools = npt.NDArray[np.bool_]

Times = Mapping[int, tuple[Ints, Ints]]
"""When something of each rank began and ended."""


@dataclass(frozen=True)
class DeviceTime:
    """One device of one rank, in its used steps, or else from its first work to its last.

    `compute` is kernels other than communication, `moves` is copies and fills by the driver.
    `overlap` is communication while something computes; `exposed` is the rest of communication.
    Computing, exposed communication, moves next to nothing else, and idle time fill the window.
    """

    rank: int
    device: str
    window_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    moves_ns: int
    overlap_ns: int
    moves_alone_ns: int
    """Copies and fills while nothing computes or communicates."""
    late_ns: int
    """Idle until work that began as soon as the host had launched it."""
    synchronised_ns: int
    """The same after the host had waited until the device had nothing to do."""
    idle_waiting_ns: int
    """Idle while the host waited in a collective for another rank; in none of the others."""
    waiting_ns: int | None
    """The part of `exposed` in which other ranks had not come; null if that is not known."""

    @property
    def idle_ns(self) -> int:
        return self.window_ns - self.busy_ns

    @property
    def exposed_ns(self) -> int:
        return self.communication_ns - self.overlap_ns

    @property
    def queued_ns(self) -> int:
        """Idle although the next work was launched in time, or for no known reason."""
        return self.idle_ns - self.late_ns - self.synchronised_ns - self.idle_waiting_ns

    def plus(self, other: DeviceTime) -> DeviceTime:
        """Add up two windows of one device, or of several."""
        sums: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            if field.name.endswith("_ns"):
                mine, theirs = getattr(self, field.name), getattr(other, field.name)
                sums[field.name] = None if mine is None or theirs is None else mine + theirs
        return dataclasses.replace(self, **sums)


def work_kinds(categories: Sequence[str]) -> Ints:
    """Return for each category whether it computes, communicates or moves."""
    kinds = np.full(len(categories), COMPUTING, dtype=np.int64)
    for place, name in enumerate(categories):
        if name == COMMUNICATION:
            kinds[place] = COMMUNICATING
        elif name in _MOVES:
            kinds[place] = MOVING
    return kinds


def device_times(
    kernels: pa.Table,
    samples: pa.Table | None = None,
    waits: Times | None = None,
    *,
    in_windows: bool = False,
    used: Times | None = None,
) -> tuple[DeviceTime, ...]:
    """Return a row for each rank and device that ran anything, except for the host.

    `samples` hold the waits of the host, if its calls were recorded. `waits` are the ranks' waits
    for each other. If only windows of steps were captured, the time between them does not count.
    `used` are the steps that count, from begin to end, or else all time from first to last work.
    """
    if in_windows:
        kernels = kernels.filter(kernels["step"].is_valid())
    if not kernels.num_rows:
        return ()
    devices, device = names_and_codes(kernels["device"])
    categories, category = names_and_codes(kernels["category"])
    kind = work_kinds(categories)[category]
    rank = kernels["rank"].to_numpy().astype(np.int64)
    _, lane = np.unique(device_lanes(kernels), return_inverse=True)
    if in_windows:
        # Successive steps are of one window.
        numbers, place = np.unique(kernels["step"].to_numpy(), return_inverse=True)
        window = np.cumsum(np.diff(numbers, prepend=numbers[:1]) > 1)[place]
        lane = lane * (int(window.max()) + 1) + window
    gaps = find_gaps(kernels, lane)
    length = gaps.length.astype(np.float64)
    if used is not None:
        gaps = _with_first(gaps, kernels, lane, used)
        length = _covered_by(used, rank[gaps.after], gaps)
        if waits is not None:
            waits = {each: common_parts(*waits[each], *used[each]) for each in waits}
    reasons = idle_reasons(kernels, gaps, samples)
    for_rank = _covered_by(waits or {}, rank[gaps.after], gaps)
    idle = []
    for ns in (
        np.where(reasons == LATE, length - for_rank, 0),
        np.where(reasons == SYNCHRONISED, length - for_rank, 0),
        for_rank,
    ):
        idle.append(np.bincount(lane[gaps.after], weights=ns, minlength=int(lane.max()) + 1))
    columns = np.rint(idle).astype(np.int64).T.tolist()
    found: dict[tuple[int, str], DeviceTime] = {}
    for rows in split_lanes(np.argsort(lane, kind="stable"), lane):
        key = int(rank[rows[0]]), devices[device[rows[0]]]
        if key[1] == HOST:
            continue
        wait = waits.get(key[0]) if waits is not None else None
        counted = used[key[0]] if used is not None else None
        time = _sum_up(key, kernels.take(pa.array(rows)), kind[rows], wait, counted)
        late, synchronised, for_other = columns[lane[rows[0]]]
        time = dataclasses.replace(
            time, late_ns=late, synchronised_ns=synchronised, idle_waiting_ns=for_other
        )
        found[key] = found[key].plus(time) if key in found else time
    return tuple(found[key] for key in sorted(found))


def _with_first(gaps: Gaps, kernels: pa.Table, lane: Ints, used: Times) -> Gaps:
    """Return the gaps, and those from the first used step to the first work of each device."""
    order = np.lexsort((kernels["start_ns"].to_numpy(), lane))
    first = order[np.unique(lane[order], return_index=True)[1]]
    starts, ranks = kernels["start_ns"].to_numpy()[first], kernels["rank"].to_numpy()[first]
    opens = np.array([used[each][0].min() for each in ranks.tolist()])
    later = starts > opens
    added = (opens[later], starts[later], first[later], first[later])
    return Gaps(*map(np.concatenate, zip(gaps, added, strict=True)))


def _covered_by(times: Times, rank: Ints, gaps: Gaps) -> Floats:
    """Return how much of each gap lies in such a time of its rank."""
    covered = np.zeros(len(rank))
    for each, (begin, until) in times.items():
        mine = rank == each
        covered[mine] = covered_each(begin, until, gaps.start[mine], gaps.end[mine])
    return covered


def _sum_up(
    key: tuple[int, str],
    work: pa.Table,
    kind: Ints,
    wait: tuple[Ints, Ints] | None,
    used: tuple[Ints, Ints] | None,
) -> DeviceTime:
    """Sum up the work of one device."""
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    window_ns = int(end.max() - start.min())
    if used is not None:
        window_ns = union_length(*used)

    def length_of(rows: Bools) -> int:
        if used is None:
            return union_length(start[rows], end[rows])
        return union_length(*common_parts(start[rows], end[rows], *used))

    moving = kind == MOVING
    compute, communication = length_of(kind == COMPUTING), length_of(kind == COMMUNICATING)
    either, busy = length_of(~moving), length_of(moving | ~moving)
    waiting = None
    if wait is not None:
        opens, closes = exposed_communication(start, end, kind)
        waiting = int(covered_each(*wait, opens, closes).sum())
    return DeviceTime(
        *key,
        window_ns=window_ns,
        busy_ns=busy,
        compute_ns=compute,
        communication_ns=communication,
        moves_ns=length_of(moving),
        overlap_ns=compute + communication - either,
        moves_alone_ns=busy - either,
        late_ns=0,
        synchronised_ns=0,
        idle_waiting_ns=0,
        waiting_ns=waiting,
    )


def exposed_communication(start: Ints, end: Ints, kind: Ints) -> tuple[Ints, Ints]:
    """Return when a device communicated and computed nothing, from its work and their kinds."""
    mine, others = kind == COMMUNICATING, kind == COMPUTING
    return subtract_union(start[mine], end[mine], start[others], end[others])


def waits_for_ranks(collectives: pa.Table) -> dict[int, tuple[Ints, Ints]] | None:
    """Return when each rank waits in a collective; `None` unless all were seen everywhere."""
    found = match_all(collectives)
    if not found.count or found.count > found.matched_count:
        return None
    waits = {}
    for rank, mine in places_of_ranks(found.rank).items():
        start, end = found.start[mine], found.end[mine]
        waits[rank] = start, np.maximum(start, end - found.transfer[mine])
    return waits
