"""Places phases on the device, by the work that each of them launched.

A phase begins on the device with the first work that it launched, and ends with the last. Phases
of one depth do not overlap: one that begins under the phase before it counts from that one's end.
Communication is no part of this, because it runs next to other work. What nothing hides of it
becomes a phase of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from profkit.analysis.intervals import ranges
from profkit.analysis.kernels.device_time import COMMUNICATING, exposed_communication
from profkit.importers.kineto.phases import NestedSpan, PhaseSpan
from profkit.importers.kineto.work import DeviceWork
from profkit.importers.reading.numbers import Ints
from profkit.vocab import EXPOSED, Phase

_NEVER = np.iinfo(np.int64).max
_DEEPEST = 8
"""Deeper regions stay without device times: nobody sums them up."""
_HOST_ONLY = frozenset({Phase.DATA.value, Phase.ALLREDUCE.value})
"""The host waits for data, and only launches collectives: neither is time on the device."""


NOWHERE = -_NEVER
"""The device's time in a span in which it never was."""


class PlacedSpan(NamedTuple):
    """A span, and when the device was in it; `NOWHERE` if it never was."""

    nested: NestedSpan
    device_start: int = NOWHERE
    device_end: int = NOWHERE


def place_spans(
    spans: Sequence[NestedSpan], main: int, work: DeviceWork, kind: Ints
) -> list[PlacedSpan]:
    """Return the spans with device times, and the exposed communication as further spans.

    `kind` says what each piece of work is.
    """
    bounds = _work_bounds([each.span for each in spans], work, kind)
    placed: list[PlacedSpan] = []
    around: list[PlacedSpan] = []
    ends: dict[int, int] = {}
    """When the device left the last span of each level."""
    for each, first, last in zip(spans, *bounds, strict=True):
        while around and not _holds(around[-1].nested, each):
            around.pop()
        level = len(around)
        made = PlacedSpan(each)
        inside = each.span.lane == main and level < _DEEPEST
        if inside and (around or each.phase not in _HOST_ONLY):
            made = _place(each, (first, last), around, ends.get(level, NOWHERE))
        if made.device_end != NOWHERE:
            ends[level] = made.device_end
            around.append(made)
        placed.append(made)
    timed = [each for each in placed if each.device_end != NOWHERE]
    return placed + _exposed_spans(main, work, kind, timed)


def _place(
    span: NestedSpan, bounds: tuple[int, int], around: Sequence[PlacedSpan], since: int
) -> PlacedSpan:
    """Return a span within the one around it; one that launched no work takes no time there."""
    first, last = bounds
    if first < last and span.phase not in _HOST_ONLY:
        least, most = max(first, since), last
        if around:
            least, most = max(least, around[-1].device_start), min(most, around[-1].device_end)
        return PlacedSpan(span, least, max(least, most))
    if not around:
        return PlacedSpan(span)
    begin = min(max(around[-1].device_start, since), around[-1].device_end)
    return PlacedSpan(span, begin, begin)


def _holds(outer: NestedSpan, inner: NestedSpan) -> bool:
    return outer.span.lane == inner.span.lane and outer.span.end >= inner.span.end


def _work_bounds(
    spans: Sequence[PhaseSpan], work: DeviceWork, kind: Ints
) -> tuple[list[int], list[int]]:
    """Return when the first work that each span launched began, and when the last ended."""
    rows = np.flatnonzero((work.launch >= 0) & (kind != COMMUNICATING))
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
    mine = np.flatnonzero((kind == COMMUNICATING) & (work.launch >= 0))
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
