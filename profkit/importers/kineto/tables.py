"""Turns one rank's events into rows of the tables `kernels` and `spans`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from profkit.analysis.kernels.categories import (
    MEMSET,
    categorise,
    copy_category,
    uses_tensor_cores,
)
from profkit.frame.intervals import union
from profkit.frame.phases import UNKNOWN
from profkit.importers.kineto.device_phases import NOWHERE, PlacedSpan
from profkit.importers.kineto.events import Events, Role, thread_names
from profkit.importers.kineto.phases import NestedSpan
from profkit.importers.kineto.steps import Steps
from profkit.importers.kineto.work import DeviceWork
from profkit.importers.reading import columns
from profkit.importers.reading.numbers import MISSING, Ints
from profkit.vocab import HOST_SYNC, KERNELS

_WAITING_CALL = re.compile(r"Synchronize|^(?:cuda|cu|hip)(?:Memcpy|Free|Malloc(?!Async))")
"""Calls in which the host may wait until the device has done all its work."""


def kernel_columns(
    events: Events, work: DeviceWork, described: Described, steps: Steps, phases: PhaseLookup
) -> dict[str, Any]:
    """Return the device work as rows of `kernels`."""
    works, has = events.trace.works, work.detail >= 0
    if len(works):
        detail = works[np.maximum(work.detail, 0)]
    else:
        detail = np.zeros(len(work.place), works.dtype)
    categories, category, cores = described
    devices, device = np.unique(work.device, return_inverse=True)
    correlation = events.column("correlation", work.place)
    op = work.op
    if len(events.name):
        op = np.where(work.op >= 0, events.name[work.op], columns.NULL)
    shared = detail["shared"].astype(np.int64)
    return {
        "device": columns.names(device, [f"cuda:{each}" for each in devices.tolist()]),
        "stream": work.stream,
        "start_ns": work.start,
        "end_ns": work.end,
        "name": columns.names(events.name[work.place], events.names),
        "category": columns.names(category, categories),
        "correlation": columns.numbers(correlation, correlation != MISSING),
        "launch_ns": columns.numbers(work.launch_time, work.launch >= 0),
        "step": steps.column_at(work.launch_time),
        "phase": phases.column(work),
        "op": columns.names(op, events.names),
        "grid": columns.triples(detail["grid"], has & (detail["grid"] > 0).all(axis=1)),
        "block": columns.triples(detail["block"], has & (detail["block"] > 0).all(axis=1)),
        "registers": columns.numbers(detail["registers"], has & (detail["registers"] >= 0)),
        "shared_bytes": columns.numbers(shared, has & (shared >= 0)),
        "bytes": columns.numbers(detail["bytes"], has & (detail["bytes"] >= 0)),
        "tensor_core": columns.flags(cores > 0, cores >= 0),
    }


class Described(NamedTuple):
    """Categories, each work's category, and its use of Tensor Cores, -1 if unknown."""

    categories: list[str]
    category: Ints
    cores: Ints


def describe_work(events: Events, work: DeviceWork) -> Described:
    """Return what the names of the work say of it."""
    role, name = events.role[work.place], events.name[work.place]
    count = len(events.names)
    pairs, which = np.unique(role.astype(np.int64) * count + name, return_inverse=True)
    ids: dict[str, int] = {}
    category, cores = [], []
    used: bool | None
    for pair in pairs.tolist():
        text = events.names[pair % count]
        kind, used = MEMSET, False
        if pair // count == Role.KERNEL:
            kind = categorise(text)
            used = uses_tensor_cores(text, kind)
        elif pair // count == Role.COPY:
            kind = copy_category(text)
        category.append(ids.setdefault(kind, len(ids)))
        cores.append(-1 if used is None else int(used))
    categories = np.array(category, dtype=np.int64)
    return Described(list(ids), categories[which], np.array(cores, dtype=np.int64)[which])


def host_columns(events: Events, steps: Steps) -> dict[str, Any]:
    """Return the outermost operators of each thread as kernels, if no device worked."""
    ops = events.of(Role.OP)
    order = ops[np.lexsort((-events.end[ops], events.start[ops], events.lane[ops]))]
    lanes, stream = np.unique(events.lane[order], return_inverse=True)
    outer = np.ones(len(order), dtype=bool)
    for each in range(len(lanes)):
        own = np.flatnonzero(stream == each)
        reach = np.maximum.accumulate(events.end[order[own]])
        outer[own[1:]] = events.start[order[own[1:]]] >= reach[:-1]
    place, stream = order[outer], stream[outer]
    start = events.start[place]
    name = columns.names(events.name[place], events.names)
    return {
        "device": columns.constant("cpu", len(place)),
        "stream": stream,
        "start_ns": start,
        "end_ns": events.end[place],
        "name": name,
        "category": columns.constant("operator", len(place)),
        "launch_ns": start,
        "step": steps.column_at(start),
        "op": name,
        "tensor_core": columns.flags(np.zeros(len(place), dtype=bool)),
    }


class PhaseLookup:
    """Finds the outermost phase of the training thread in which something was launched.

    The autograd engine's thread launches during backward. So what another thread launches counts
    for the phase of the training thread.
    """

    def __init__(self, spans: Sequence[NestedSpan], main: int) -> None:
        ids: dict[str, int] = {}
        rows = []
        for each in spans:
            if each.depth == 0 and each.span.lane == main and each.phase != UNKNOWN:
                phase = ids.setdefault(each.phase, len(ids))
                rows.append((each.span.start, each.span.end, phase))
        self._names = list(ids)
        self._start, self._end, self._phase = np.array(rows, dtype=np.int64).reshape(-1, 3).T

    def column(self, work: DeviceWork) -> Any:
        """Return the phase of each launch as a column."""
        ids = np.where(work.launch >= 0, self.ids_at(work.launch_time), columns.NULL)
        return columns.names(ids, self._names)

    def names_at(self, time: Ints) -> list[str | None]:
        """Return the phase at each time."""
        return [None if each < 0 else self._names[each] for each in self.ids_at(time).tolist()]

    def ids_at(self, time: Ints) -> Ints:
        """Return the phase at each time as a number, `columns.NULL` if there is none."""
        if not len(self._start):
            return np.full(len(time), columns.NULL, dtype=np.int64)
        at = np.searchsorted(self._start, time, side="right") - 1
        inside = (at >= 0) & (time < self._end[np.maximum(at, 0)])
        return np.where(inside, self._phase[at], columns.NULL)


def wait_columns(events: Events, work: DeviceWork) -> dict[str, Any]:
    """Return the host's waits for the device as samples, if the device ran dry meanwhile."""
    dry = []
    for device in np.unique(work.device).tolist():
        own = work.device == device
        dry.append(union(work.start[own], work.end[own])[1])
    moments = np.sort(np.concatenate(dry))
    waits = np.zeros(max(1, len(events.names)), dtype=bool)
    calls = events.of(Role.LAUNCH)
    for name in np.unique(events.name[calls]).tolist():
        waits[name] = _WAITING_CALL.search(events.names[name]) is not None
    calls = calls[waits[events.name[calls]]]
    start, end = events.start[calls], events.end[calls]
    ran_dry = np.searchsorted(moments, end, side="right") > np.searchsorted(moments, start)
    start, end = start[ran_dry], end[ran_dry]
    return {
        "source": columns.constant(KERNELS, len(end)),
        "metric": columns.constant(HOST_SYNC, len(end)),
        "time_ns": end,
        "value": (end - start).astype(np.float64),
    }


def span_columns(events: Events, spans: Sequence[PlacedSpan], steps: Steps) -> dict[str, Any]:
    """Return the phases and regions as rows of `spans`."""
    known = thread_names(events.trace)
    phases, names, threads = [], [], []
    numbers = np.zeros((5, len(spans)), dtype=np.int64)
    for place, ((span, phase, depth), *on_device) in enumerate(spans):
        process, thread = divmod(span.lane, len(events.names))
        phases.append(phase)
        names.append(span.name)
        threads.append(known.get((process, thread)) or f"thread {events.names[thread]}")
        numbers[:, place] = depth, span.start, span.end, *on_device
    depths, start, end, device_start, device_end = numbers
    is_timed = device_end != NOWHERE
    return {
        "step": steps.column_at(start),
        "phase": phases,
        "name": names,
        "depth": depths.astype(np.int16),
        "thread": threads,
        "start_ns": start,
        "end_ns": end,
        "device_start_ns": columns.numbers(device_start, is_timed),
        "device_end_ns": columns.numbers(device_end, is_timed),
    }
