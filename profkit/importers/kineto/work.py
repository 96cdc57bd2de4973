"""Finds everything that ran on a rank's devices, and what launched it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from profkit.importers.kineto.events import WORK_ROLES, Events, Role
from profkit.importers.reading.numbers import MISSING, MISSING_SMALL, Ints
from profkit.importers.reading.sanity import TimeGate

UNKNOWN_STREAM = 2**32 - 1
"""Some versions write -1 as an unsigned number."""
MAX_DEVICE, MAX_STREAM = 2**20, 2**40
_MOST_MOMENTS = 2**50
"""Lane, time and depth make one number. If times are too long for that, their ranks stand in."""


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and fills, oldest first.

    `place` is each one's place in the events, `detail` its row in the trace's `works`, `launch` the
    place of its call and `op` that of its operator; they are -1 if there is none.
    """

    place: Ints
    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    detail: Ints
    launch: Ints
    op: Ints
    launch_time: Ints
    """The beginning of the call, or of the work itself if the call is unknown."""
    duplicates: int = 0
    """Calls whose correlation id an earlier call has too, though some work names it."""


def find_work(events: Events, gate: TimeGate) -> DeviceWork:
    """Return the device work of a file; ends that overlap the next start are repaired."""
    place = events.of(*WORK_ROLES)
    place = place[np.argsort(events.start[place], kind="stable")]
    start = events.start[place]
    works = events.trace.works
    detail_of_row = np.full(len(events.trace.events) + 1, -1, dtype=np.int64)
    detail_of_row[works["event"]] = np.arange(len(works))
    detail = detail_of_row[events.row[place]]
    device, stream = find_streams(events, place, detail)
    end = gate.clip_overlaps(device * 2**32 + stream, start, events.end[place])
    calls = events.of(Role.LAUNCH)
    correlation = events.column("correlation", place)
    launch = _find_first(events.column("correlation", calls), calls, correlation)
    launch_time = np.where(launch >= 0, events.start[launch], start)
    op = find_operators(events, place, launch, launch_time)
    ids, counts = np.unique(events.column("correlation", calls), return_counts=True)
    repeated = ids[(counts > 1) & (ids != MISSING)]
    shared = np.isin(repeated, correlation)
    duplicates = int((counts[np.isin(ids, repeated[shared])] - 1).sum())
    return DeviceWork(
        place, start, end, device, stream, detail, launch, op, launch_time, duplicates
    )


def find_streams(events: Events, place: Ints, detail: Ints) -> tuple[Ints, Ints]:
    """Return device and stream of each work, from its arguments, else its thread's name."""
    works = events.trace.works
    process, thread = events.column("process", place), events.column("thread", place)
    if not len(works):
        return _numbers_in_names(events, process), _numbers_in_names(events, thread)
    device, stream = works["device"][detail].astype(np.int64), works["stream"][detail]
    no_device = (detail < 0) | (device == MISSING_SMALL)
    no_stream = (detail < 0) | (stream == MISSING)
    device = np.where(no_device, _numbers_in_names(events, process), device)
    stream = np.where(no_stream, _numbers_in_names(events, thread), stream)
    is_unknown = (stream == UNKNOWN_STREAM) | (np.abs(stream) >= MAX_STREAM)
    return np.clip(device, -1, MAX_DEVICE), np.where(is_unknown, -1, stream)


def _numbers_in_names(events: Events, ids: Ints) -> Ints:
    """Return the number in each name (7 in `stream 7`), 0 if there is none."""
    known = {}
    for each in np.unique(ids).tolist():
        found = re.search(r"\d{1,9}", events.names[each])
        known[each] = int(found[0]) if found else 0
    return np.array([known[each] for each in ids.tolist()], dtype=np.int64)


def _find_first(keys: Ints, places: Ints, wanted: Ints) -> Ints:
    """Return for each wanted key the first place that has it, -1 if there is none."""
    given = keys != MISSING
    keys, places = keys[given], places[given]
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[at]
    return np.where((keys[found] == wanted) & (wanted != MISSING), places[found], -1)


def find_operators(events: Events, place: Ints, launch: Ints, launch_time: Ints) -> Ints:
    """Return the operator that launched each piece of work.

    It is the one with its external id, if that one was running on the call's thread at the time of
    the call. Else it is the innermost one that was. If the call is unknown, the operator must only
    have begun.
    """
    ops = events.of(Role.OP)
    external = events.column("external", place)
    called = events.column("external", np.maximum(launch, 0))
    called = np.where(launch >= 0, called, MISSING)
    external = np.where((external == MISSING) | (external == 0), called, external)
    found = _find_first(events.column("external", ops), ops, external)
    no_call = launch < 0
    same_thread = no_call | (events.lane[found] == events.lane[launch])
    is_running = no_call | (events.end[found] >= launch_time)
    is_running &= same_thread & (events.start[found] <= launch_time)
    found = np.where((found >= 0) & is_running, found, -1)
    missing = np.flatnonzero((found < 0) & ~no_call)
    lane, time = events.lane[launch[missing]], launch_time[missing]
    found[missing] = find_innermost(events, ops, lane, time)
    return found


def find_innermost(events: Events, places: Ints, lane: Ints, time: Ints) -> Ints:
    """Return for each time which of these events ran on its lane and began last, or -1.

    Events of one lane are nested. So at a time at which n of them run, the innermost is the last
    one of depth n - 1 that has begun, however many of its children have ended.
    """
    found = np.full(len(time), -1, dtype=np.int64)
    if not len(places) or not len(time):
        return found
    places = places[np.isin(events.lane[places], np.unique(lane))]
    order = places[np.lexsort((-events.end[places], events.start[places], events.lane[places]))]
    start, end = events.start[order], events.end[order]
    if not len(order):
        return found
    lanes, lane_of = np.unique(events.lane[order], return_inverse=True)
    lane_place = np.minimum(np.searchsorted(lanes, lane), len(lanes) - 1)
    known = np.flatnonzero(lanes[lane_place] == lane)
    times = np.concatenate([start, end, time[known]])
    times -= times.min()
    if len(lanes) * int(times.max()) > _MOST_MOMENTS:
        times = np.unique(times, return_inverse=True)[1]
    moments = int(times.max()) + 1
    of_start, of_end, of_time = np.split(times, [len(order), 2 * len(order)])
    begun, wanted = lane_of * moments + of_start, lane_place[known] * moments + of_time
    ends = np.sort(lane_of * moments + of_end)
    # What takes no time has ended as it begins, but what begins with it is not behind it.
    moment = begun[start == end]
    at_once = np.searchsorted(moment, begun, side="right") - np.searchsorted(moment, begun)
    depth = np.arange(len(order)) - np.searchsorted(ends, begun, side="right") + at_once
    shelf = np.lexsort((begun, depth))
    row = len(lanes) * moments
    key = depth[shelf] * row + begun[shelf]
    count = np.searchsorted(begun, wanted, side="right")
    # What began last is the innermost if it still runs. A call may begin as its operator ends, so
    # both counts of what has ended are tried.
    tried = [count - 1]
    for side in ("right", "left"):
        running = count - np.searchsorted(ends, wanted, side=side)
        at = np.searchsorted(key, (running - 1) * row + wanted, side="right") - 1
        tried.append(np.where(at >= 0, shelf[np.maximum(at, 0)], -1))
    for candidate in tried:
        holds = (candidate >= 0) & (lane_of[candidate] == lane_place[known]) & (found[known] < 0)
        holds &= end[candidate] >= time[known]
        found[known[holds]] = order[candidate[holds]]
    return found
