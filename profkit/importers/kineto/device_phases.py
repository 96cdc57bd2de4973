"""Places phases on the device, by the work that each of them launched.

A phase begins on the device with the first work that it launched, and ends with the last. Phases
of one depth do not overlap: one that begins under the phase before it counts from that one's end.
Communication is no part of this, because it runs next to other work. What nothing hides of it
becomes a phase of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from profkit.analysis.kernels.device_time import COMMUNICATING, exposed_communication
from profkit.frame.intervals import ranges
from profkit.importers.kineto.phases import NestedSpan, PhaseSpan
from profkit.importers.kineto.work import DeviceWork
from profkit.importers.reading.numbers import Ints
from profkit.vocab import EXPOSED, Phase

_NEVER = np.iinfo(np.int64).max
_DEEPEST = 8
"""Deeper regions stay without device times: nobody sums them up."""
_HOST_ONLY = frozenset({Phase.DATA.value, Phase.ALLREDUCE.value})
"""The host waits for data, and only launches collectives: neither is time on the device."""
_ON_DEVICE = frozenset(
    each.value
    for each in (Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.ALLREDUCE)
)
"""Phases that are on the device, if it has any work at all; without work they take no time."""


NOWHERE = -_NEVER
"""The device's time in a span in which it never was."""


class PlacedSpan(NamedTuple):
    """A span, and when the device was in it; `NOWHERE` if it never was."""

    nested: NestedSpan
    device_start: int = NOWHERE
    device_end: int = NOWHERE


def place_spans(
    spans: Sequence[NestedSpan], main: int, work: DeviceWork, lane: Ints, kind: Ints
) -> list[PlacedSpan]:
    """Return the spans with device times, and the exposed communication as further spans.

    `lane` is the thread that launched each piece of work, `kind` says what it is. What any thread
    launches counts for the phase of the training thread, and for that of its own.
    """
    placed: list[PlacedSpan] = []
    timed: list[PlacedSpan] = []
    launched = (work.launch >= 0) & (kind != COMMUNICATING)
    for thread, group in groupby(spans, key=lambda each: each.span.lane):
        rows = np.flatnonzero(launched & ((lane == thread) | (thread == main)))
        found = _place_thread(list(group), work, rows)
        placed += found
        if thread == main:
            timed = [each for each in found if each.device_start < each.device_end]
    return placed + _exposed_spans(main, work, kind, timed)


def _place_thread(spans: Sequence[NestedSpan], work: DeviceWork, rows: Ints) -> list[PlacedSpan]:
    """Place the spans of one thread, which are sorted by time; `rows` is what it launched."""
    placed: list[PlacedSpan] = []
    around: list[PlacedSpan] = []
    ends: dict[int, int] = {}
    """When the device left the last span of each level."""
    bounds = _work_bounds([each.span for each in spans], work, rows)
    for each, first, last in zip(spans, *bounds, strict=True):
        while around and around[-1].nested.span.end < each.span.end:
            around.pop()
        level = len(around)
        made = PlacedSpan(each)
        if level < _DEEPEST:
            made = _place(each, (first, last), around, ends.get(level, NOWHERE))
        if made.device_end != NOWHERE and each.phase not in _HOST_ONLY:
            ends[level] = made.device_end
            around.append(made)
        placed.append(made)
    return placed


def _place(
    span: NestedSpan, bounds: tuple[int, int], around: Sequence[PlacedSpan], since: int
) -> PlacedSpan:
    """Return a span within the one around it; one that launched no work takes no time there.

    A wait for data, or an evaluation without device work, is the host's alone.
    """
    first, last = bounds
    works = first < last and span.phase not in _HOST_ONLY
    if not around and not works and span.phase not in _ON_DEVICE:
        return PlacedSpan(span)
    begin = max(first if works else span.span.start, since)
    end = last if works else begin
    if around:
        least, most = around[-1].device_start, around[-1].device_end
        begin, end = min(max(begin, least), most), min(end, most)
    return PlacedSpan(span, begin, max(begin, end))


def _work_bounds(
    spans: Sequence[PhaseSpan], work: DeviceWork, rows: Ints
) -> tuple[list[int], list[int]]:
    """Return when the first work that each span launched began, and when the last ended."""
    rows = rows[np.argsort(work.launch_time[rows], kind="stable")]
    times = np.array([(span.start, span.end) for span in spans], dtype=np.int64).reshape(-1, 2)
    bounds = np.searchsorted(work.launch_time[rows], times)
    # A pair of places at which nothing was launched must not reach the work behind it.
    start = np.append(work.start[rows], _NEVER)
    end = np.append(work.end[rows], -_NEVER)
    empty = bounds[:, 0] == bounds[:, 1]
    first, last = np.full(len(spans), _NEVER), np.full(len(spans), -_NEVER)
    pairs = bounds[~empty].ravel()
    if len(pairs):
        first[~empty] = np.minimum.reduceat(start, pairs)[::2]
        last[~empty] = np.maximum.reduceat(end, pairs)[::2]
    return first.tolist(), last.tolist()


def _exposed_spans(
    main: int, work: DeviceWork, kind: Ints, timed: Sequence[PlacedSpan]
) -> list[PlacedSpan]:
    """Return the exposed communication, cut so that each piece lies in one phase or in none."""
    opens, closes, inner = (
        np.array(
            [(each.device_start, each.device_end, each.nested.depth + 1) for each in timed],
            dtype=np.int64,
        )
        .reshape(-1, 3)
        .T
    )
    borders = np.unique(np.concatenate([opens, closes]))
    mine = np.flatnonzero(kind == COMMUNICATING)
    found = []
    for device in np.unique(work.device[mine]).tolist():
        own = work.device == device
        pieces = exposed_communication(work.start[own], work.end[own], kind[own])
        starts, ends = _cut(*pieces, borders)
        # Spans come before those inside them, so that the innermost one is assigned last.
        depth = np.zeros(len(starts), dtype=np.int64)
        bounds = np.searchsorted(starts, np.stack([opens, closes]))
        for first, last, inside in zip(*bounds.tolist(), inner.tolist(), strict=True):
            depth[first:last] = inside
        senders = mine[work.device[mine] == device]
        at = np.searchsorted(work.start[senders], starts, side="right") - 1
        launched = work.launch_time[senders[np.maximum(at, 0)]]
        columns = (launched.tolist(), depth.tolist(), starts.tolist(), ends.tolist())
        for time, level, start, end in zip(*columns, strict=True):
            span = PhaseSpan(main, time, time, Phase.ALLREDUCE.value, EXPOSED)
            found.append(PlacedSpan(NestedSpan(span, span.phase, level), start, end))
    return found


def _cut(starts: Ints, ends: Ints, borders: Ints) -> tuple[Ints, Ints]:
    """Cut intervals at each border that lies inside one."""
    first = np.searchsorted(borders, starts, side="right")
    last = np.searchsorted(borders, ends, side="left")
    row, piece = ranges(first, np.maximum(first, last) + 1)
    inner = np.append(borders, _NEVER)
    before = np.where(piece > first[row], inner[piece - 1], starts[row])
    return before, np.minimum(ends[row], np.where(piece < last[row], inner[piece], ends[row]))
