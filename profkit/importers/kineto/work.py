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
MAX_NESTED_OPERATORS = 64
"""If the file does not name the operator around a call, this many earlier ones are tried."""


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
    return DeviceWork(place, start, end, device, stream, detail, launch, op, launch_time)


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
    """Return for each time which of these events ran on its lane and began last, or -1."""
    found = np.full(len(time), -1, dtype=np.int64)
    if not len(places) or not len(time):
        return found
    order = places[np.lexsort((-events.end[places], events.start[places], events.lane[places]))]
    lanes, lane_of = np.unique(events.lane[order], return_inverse=True)
    moments, moment_of = np.unique(np.concatenate([events.start[order], time]), return_inverse=True)
    key = lane_of * len(moments) + moment_of[: len(order)]
    lane_place = np.minimum(np.searchsorted(lanes, lane), len(lanes) - 1)
    wanted = lane_place * len(moments) + moment_of[len(order) :]
    at = np.searchsorted(key, wanted, side="right") - 1
    unsettled = np.flatnonzero((at >= 0) & (lanes[lane_place] == lane))
    for _ in range(MAX_NESTED_OPERATORS):
        candidate = order[at[unsettled]]
        same_lane = events.lane[candidate] == lane[unsettled]
        holds = (events.end[candidate] >= time[unsettled]) & same_lane
        found[unsettled[holds]] = candidate[holds]
        unsettled = unsettled[~holds]
        at[unsettled] -= 1
        unsettled = unsettled[at[unsettled] >= 0]
        if not len(unsettled):
            break
    return found
