"""Puts spans on the device's clock, and finds those whose device times are missing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import codes_of, equals, places_in
from profkit.frame.estimate import Ints
from profkit.vocab import Phase

Bools = npt.NDArray[np.bool_]

WORKS = tuple(each.value for each in (Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
"""The phases whose spans have device times on every rank that reads its device's clock."""


def has_device_times(spans: pa.Table) -> Bools:
    """Return which spans have both of their device times."""
    starts, ends = spans["device_start_ns"], spans["device_end_ns"]
    if starts.null_count == len(starts):
        return np.zeros(len(starts), dtype=bool)
    return np.asarray(pc.and_(starts.is_valid(), ends.is_valid()).to_numpy())


def works(spans: pa.Table) -> Bools:
    """Return which spans are phases that a device works for, and inside no other."""
    return np.asarray((places_in(spans["phase"], WORKS) >= 0) & (levels_of(spans) == 0))


def exposed_spans(spans: pa.Table) -> pa.Table:
    """Return the spans on the device's clock, if it was read.

    The device reaches a boundary only when the host has issued it and all work before it is done.
    If only the host knows a span, such as the wait for data, the exposed part of it is the one in
    which the device had reached the end of its last phase and not yet the start of its next. If it
    is inside a span with device times, it is the part between these. Of a copy, it is the part in
    which the device did not work for another phase.
    """
    on_device = has_device_times(spans)
    if not on_device.any():
        return spans
    rank, depth = spans["rank"].to_numpy(), levels_of(spans)
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    starts, ends = spans["device_start_ns"], spans["device_end_ns"]
    device_start = np.where(on_device, starts.fill_null(0).to_numpy(), start)
    device_end = np.where(on_device, ends.fill_null(0).to_numpy(), end)
    ranks = np.unique(rank[on_device])
    is_timed_work = on_device & works(spans)
    is_copy = is_timed_work & equals(spans["phase"], Phase.H2D.value)
    for each in ranks:
        others = np.flatnonzero((rank == each) & is_timed_work & ~is_copy)
        copies = np.flatnonzero((rank == each) & is_copy)
        device_start[copies], device_end[copies] = _clip_copies(
            start[copies],
            (device_start[copies], device_end[copies]),
            start[others],
            (device_start[others], device_end[others]),
        )
        outer = np.flatnonzero((rank == each) & on_device & (depth == 0))
        waits = np.flatnonzero((rank == each) & ~on_device & (depth == 0))
        device_start[waits], device_end[waits] = _clip(
            start[waits], end[waits], start[outer], device_start[outer], device_end[outer]
        )
    inner = np.flatnonzero(~on_device & (depth > 0) & np.isin(rank, ranks))
    _clip_inner(spans, inner, device_start, device_end)
    nothing = pa.nulls(len(rank), pa.int64())
    columns = {"start_ns": device_start, "end_ns": device_end}
    for name, values in {**columns, "device_start_ns": nothing, "device_end_ns": nothing}.items():
        place = spans.schema.get_field_index(name)
        spans = spans.set_column(place, spans.schema.field(name), pa.array(values))
    # Only the host knows the pieces of a wait; they would not lie in the clipped wait any more.
    dropped = (depth > 0) & ~on_device & equals(spans["phase"], Phase.DATA.value)
    dropped &= np.isin(rank, ranks)
    return spans.filter(pa.array(~dropped))


def _clip_inner(spans: pa.Table, inner: Ints, device_start: Ints, device_end: Ints) -> None:
    """Clip spans that only the host knows to those around them, from the outside in."""
    depth, lane = levels_of(spans), lanes_of(spans)
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    for level in np.unique(depth[inner]):
        rows = inner[depth[inner] == level]
        around = find_parents(lane, depth, start, end, rows)
        rows, around = rows[around >= 0], around[around >= 0]
        opens, closes = device_start[around], device_end[around]
        device_start[rows] = np.clip(start[rows], opens, closes)
        device_end[rows] = np.clip(end[rows], opens, closes)


def _clip_copies(
    at: Ints, copied: tuple[Ints, Ints], host_start: Ints, phases: tuple[Ints, Ints]
) -> tuple[Ints, Ints]:
    """Clip each copy to the time in which the device did nothing else.

    A copy on a stream of its own runs while the device works for a phase that the host launched
    before. Only the time between that phase's end and the start of the next one is exposed.
    """
    start, end = copied
    if not len(host_start) or not len(at):
        return start, end
    order = np.argsort(host_start, kind="stable")
    opens, reach = phases[0][order], np.maximum.accumulate(phases[1][order])
    after = np.searchsorted(host_start[order], at)
    last_end = np.where(after > 0, reach[np.maximum(after - 1, 0)], start)
    next_start = np.where(after < len(opens), opens[np.minimum(after, len(opens) - 1)], end)
    exposed_from = np.maximum(start, last_end)
    return exposed_from, np.maximum(exposed_from, np.minimum(end, next_start))


def _clip(start: Ints, end: Ints, host_start: Ints, opens: Ints, closes: Ints) -> tuple[Ints, Ints]:
    """Clip each interval of the host to the time in which the device was idle.

    That is the time between the device's last end before the interval and its next start after it.
    """
    if not len(host_start):
        return start, end
    order = np.argsort(host_start, kind="stable")
    host_start, opens, reach = host_start[order], opens[order], np.maximum.accumulate(closes[order])
    before = np.searchsorted(host_start, start, side="left") - 1
    after = np.searchsorted(host_start, end, side="left")
    last_end = np.maximum(start, reach[np.maximum(before, 0)])
    next_start = np.minimum(end, opens[np.minimum(after, len(opens) - 1)])
    idle_from = np.where(before >= 0, last_end, start)
    idle_until = np.where(after < len(opens), next_start, end)
    return idle_from, np.maximum(idle_from, idle_until)


def lanes_of(spans: pa.Table) -> Ints:
    """Return a number for the rank and thread of each span."""
    thread = codes_of(spans["thread"])
    return np.asarray(spans["rank"].to_numpy().astype(np.int64) * (thread.max() + 1) + thread)


def levels_of(spans: pa.Table) -> Ints:
    """Return how many spans are around each span; a damaged file may hold negative numbers."""
    return np.asarray(np.maximum(spans["depth"].to_numpy(), 0), dtype=np.int64)


def find_parents(lane: Ints, level: Ints, start: Ints, end: Ints, inner: Ints) -> Ints:
    """Return the span around each `inner` span, one level up; -1 if it was not recorded.

    A shelf is a lane's spans of one level, numbered so that the shelf below is the level above. On
    it, the span that began last before the inner one does is the only one that can hold it.
    """
    if not len(inner):
        return np.empty(0, dtype=np.int64)
    shelf = lane * (level.max() + 1) + level
    _, moment = np.unique(start, return_inverse=True)
    key = shelf * len(start) + moment
    order = np.lexsort((end, key))
    before = np.searchsorted(key[order], key[inner] - len(start), side="right") - 1
    around = order[np.maximum(before, 0)]
    holds = (before >= 0) & (shelf[around] == shelf[inner] - 1) & (end[around] >= end[inner])
    return np.where(holds, around, -1)
