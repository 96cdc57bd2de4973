"""Measure how much threads next to a training loop add to its steps.

Steps in which a thread works are compared with their neighbours in the same loop. The threads
work a few times per second, and blocks of steps must be short on a machine that drifts, so blocks
would contain such work only by chance.

A long step is more likely to contain work than a short one, even if the work adds nothing. The
comparison is therefore repeated in a block without threads, with the same times. Its result is
subtracted.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profkit.frame.estimate import student_95

FEWEST_MEANS = 3
"""Processes whose means tell how far they are apart."""

_AROUND = 8
"""Steps before and after one that tell what it would have taken."""

_TRIMMED = 20
"""One step in this many is excluded at either end, because the machine was busy otherwise."""

Events = list[tuple[int, int]]
"""When a thread worked: from, to, by `time.perf_counter_ns`."""


@dataclass(frozen=True)
class Turn:
    """The ends of steps next to threads, those of as many steps without, and the threads' work."""

    beside: Sequence[int]
    alone: Sequence[int]
    events: Events

    def moved(self) -> Events:
        """Return the events, moved to the same times after the start of the other block."""
        later = self.alone[0] - self.beside[0]
        return [(start + later, end + later) for start, end in self.events]


@dataclass(frozen=True)
class Added:
    """Mean added milliseconds per step over all steps, and half of the 95 % interval."""

    mean_ms: float
    half_ms: float


def noting(events: Events, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same work, which appends its times to `events`."""

    def do(*arguments: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return work(*arguments)
        finally:
            events.append((start, time.perf_counter_ns()))

    return do


def leave_out(events: Events, waits: Events) -> Events:
    """Return the events in order without the waits inside them."""
    found = sorted(events)
    for began, ended in waits:
        place = bisect.bisect_right(found, began, key=lambda event: event[0]) - 1
        if place >= 0 and found[place][1] >= ended:
            start, end = found[place]
            found[place : place + 1] = [(start, began), (ended, end)]
    return found


def added(turns: Sequence[Turn]) -> Added:
    """Return the time that the work adds to steps. It needs some steps of each kind."""
    beside = _differ([(turn.beside, turn.events) for turn in turns])
    alone = _differ([(turn.alone, turn.moved()) for turn in turns])
    return Added(beside.mean_ms - alone.mean_ms, math.hypot(beside.half_ms, alone.half_ms))


def _differ(blocks: Sequence[tuple[Sequence[int], Events]]) -> Added:
    """Return how much longer steps with an event are than the others, spread over all steps."""
    parts = [_excess(np.asarray(ends, np.int64), events) for ends, events in blocks]
    excess, touched = (np.concatenate(each) for each in zip(*parts, strict=True))
    beside, alone = (np.sort(excess[kind & np.isfinite(excess)]) for kind in (touched, ~touched))
    beside, alone = (
        each[len(each) // _TRIMMED : len(each) - len(each) // _TRIMMED] for each in (beside, alone)
    )
    share = float(touched.mean())
    half = student_95(len(beside) - 1) * math.sqrt(
        beside.var(ddof=1) / len(beside) + alone.var(ddof=1) / len(alone)
    )
    return Added(float(beside.mean() - alone.mean()) * share, float(half) * share)


def _excess(edges: Any, events: Events) -> tuple[Any, Any]:
    """Return how much longer each step was than its neighbours, and if a thread of ours ran."""
    took = np.diff(edges) / 1e6
    touched = np.zeros(len(took), bool)
    for start, end in events:
        touched[
            max(0, np.searchsorted(edges, start, "right") - 1) : np.searchsorted(edges, end)
        ] = True
    return took - [_usual(took, touched, place) for place in range(len(took))], touched


def _usual(took: Any, touched: Any, place: int) -> float:
    around = slice(max(0, place - _AROUND), place + _AROUND + 1)
    quiet = ~touched[around]
    quiet[place - around.start] = False
    return float(np.median(took[around][quiet])) if quiet.any() else math.nan


def pool(found: Sequence[Added]) -> Added:
    """Pool processes. The interval is the wider of their own and that over their means."""
    means = [each.mean_ms for each in found]
    half = math.sqrt(sum(each.half_ms**2 for each in found)) / len(found)
    if len(means) >= FEWEST_MEANS:
        half = max(
            half, student_95(len(means) - 1) * statistics.stdev(means) / math.sqrt(len(means))
        )
    return Added(statistics.fmean(means), half)
