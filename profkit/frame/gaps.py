"""Places in a step of the time that no phase covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.frame.columns import (
    durations,
    equals,
    names_and_codes,
    places_in,
    rows_of_steps,
    split_ranks,
)
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Ints
from profkit.vocab import PHASES, ZERO_GRAD

BEGIN, END = "the step's start", "the step's end"


@dataclass(frozen=True)
class UnknownPlace:
    """The time per step between two phases, as a mean over the ranks. It may be negative."""

    after: str
    before: str
    step_ns: float


@dataclass(frozen=True)
class Gaps:
    """The time from each end of a phase to the start of the next, in one rank's used steps.

    `pair` is a number for the phases around it. A gap between phases that overlap is negative.
    """

    start: Ints
    end: Ints
    pair: Ints
    step: Ints

    def by_step(self, numbers: Ints) -> dict[int, Ints]:
        """Return the time of each pair in each of these steps."""
        pairs = np.flatnonzero(np.bincount(self.pair))
        row, count = np.searchsorted(pairs, self.pair), len(numbers)
        place = row * count + np.searchsorted(numbers, self.step)
        sums = np.bincount(place, self.end - self.start, len(pairs) * count).astype(np.int64)
        return dict(zip(pairs.tolist(), sums.reshape(len(pairs), count), strict=True))

    def find(self, moments: Ints) -> Ints:
        """Return the pair around each moment; -1 outside all gaps."""
        kept = np.flatnonzero(self.end > self.start)
        if not len(kept):
            return np.full(len(moments), -1, dtype=np.int64)
        kept = kept[np.argsort(self.start[kept], kind="stable")]
        near = np.searchsorted(self.start[kept], moments, side="right") - 1
        gap = kept[np.maximum(near, 0)]
        inside = (near >= 0) & (moments < self.end[gap])
        return np.where(inside, self.pair[gap], -1)


NO_GAPS = Gaps(*np.zeros((4, 0), dtype=np.int64))


def unknown_places(steps: pa.Table, spans: pa.Table, used: Ints) -> tuple[UnknownPlace, ...]:
    """Return the time between neighbouring phases of the used steps, longest first.

    A loop may reset gradients anywhere, which therefore divides no place into two.
    The places add up to the wall time minus the outer phases of the thread that runs the steps.
    """
    gaps = find_gaps(steps, spans, used)
    return name_places(sum_gaps(gaps.values()), len(gaps) * len(used))


def name_places(sums: Mapping[int, float], count: int) -> tuple[UnknownPlace, ...]:
    """Return the places of these sums by pair, longest first; they are over `count` steps."""
    names = (*PHASES, BEGIN, END)
    found = []
    for pair, total in sums.items():
        after, before = divmod(pair, len(names))
        found.append(UnknownPlace(names[after], names[before], total / max(1, count)))
    return tuple(sorted(found, key=lambda place: -place.step_ns))


def sum_gaps(gaps: Iterable[Gaps]) -> dict[int, float]:
    """Return the time between each pair of phases, in ns."""
    sums: dict[int, float] = {}
    for own in gaps:
        took = own.end - own.start
        for pair in np.unique(own.pair).tolist():
            sums[pair] = sums.get(pair, 0.0) + float(took[own.pair == pair].sum())
    return sums


def find_gaps(steps: pa.Table, spans: pa.Table, used: Ints) -> dict[int, Gaps]:
    """Return the gaps in the used steps of each rank that has such steps."""
    steps, spans = rows_of_steps(steps, used), rows_of_steps(spans, used)
    outer = spans["depth"].to_numpy() == 0
    spans = spans if outer.all() else spans.filter(pa.array(outer))
    own = split_ranks(spans)
    return {rank: _gaps_of_rank(rows, own[rank]) for rank, rows in split_ranks(steps).items()}


def _gaps_of_rank(steps: pa.Table, spans: pa.Table) -> Gaps:
    begin, end = len(PHASES), len(PHASES) + 1
    thread = main_thread(spans)
    if thread is None or not steps.num_rows:
        return NO_GAPS
    own = equals(spans["thread"], thread)
    spans = spans if own.all() else spans.filter(pa.array(own))
    phase = places_in(spans["phase"], PHASES)
    known = phase >= 0
    step, opens, closes = (steps[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    mine, begun = spans["step"].to_numpy()[known], spans["start_ns"].to_numpy()[known]
    by_number = np.argsort(step)
    if (begun < opens[by_number][np.searchsorted(step[by_number], mine)]).any():
        return NO_GAPS  # the host ran ahead of steps that end on the device
    number = np.concatenate([step, mine, step])
    start = np.concatenate([opens, begun, closes])
    until = np.concatenate([opens, spans["end_ns"].to_numpy()[known], closes])
    edge = np.ones(len(step), dtype=np.int64)
    kind = np.concatenate([edge * begin, phase[known], edge * end])
    no_reset = places_in(spans["name"], (ZERO_GRAD,))[known] < 0
    is_named = np.concatenate([edge > 0, no_reset, edge > 0])
    order = np.lexsort((start, np.where(kind == begin, -1, kind == end), number))
    number, start, until, kind = number[order], start[order], until[order], kind[order]
    last, following = _find_named(is_named[order])
    inside = np.flatnonzero(number[1:] == number[:-1])
    pair = kind[last[inside]] * (end + 1) + kind[following[inside + 1]]
    return Gaps(until[inside], start[inside + 1], pair, number[inside])


def _find_named(is_named: Bools) -> tuple[Ints, Ints]:
    """Return for each row the last row that names a place, and the next one.

    Both may be the row itself. A step begins and ends with such a row, so they are of its step.
    """
    at = np.arange(len(is_named))
    last = np.maximum.accumulate(np.where(is_named, at, 0))
    following = np.minimum.accumulate(np.where(is_named, at, len(at))[::-1])[::-1]
    return last, following


def main_thread(spans: pa.Table) -> str | None:
    """Return the thread with the most time in phases: what others do overlaps."""
    if not spans.num_rows:
        return None
    names, thread = names_and_codes(spans["thread"])
    took = np.bincount(thread + 1, weights=durations(spans), minlength=len(names) + 1)
    most = np.flatnonzero(took == took.max()) - 1
    first = min(most, key=lambda code: int(np.argmax(thread == code)))
    return names[first] if first >= 0 else None
