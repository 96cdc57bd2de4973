"""Changes of a run's step time while it lasts: steps, drifts, bursts, periodic slow steps."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.change_points import LEAST_CHANGE, Shift, find_settled, find_shifts
from profkit.analysis.change_ranks import find_late
from profkit.analysis.columns import rows_of_rank
from profkit.analysis.costs import OUTLIER_FACTOR
from profkit.analysis.drifts import find_drift_alone, find_drift_among
from profkit.analysis.estimate import Estimate, Floats, Ints, divide, estimate_ratios
from profkit.analysis.notices import is_log
from profkit.analysis.periodic import Periodic, find_periodic
from profkit.analysis.phases import StepTimes, step_times
from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.clock import Anchor
from profkit.errors import UnreadableError
from profkit.trace import Trace

MOST_NAMED = 3
"""Phases that a change names, the largest first."""

LEAST_NAMED_SHARE = 0.15
"""A phase is named if it makes at least this share of the change."""

_BACK_SHARE = 0.3
"""A burst is over if the level is back to this share of the rise."""

_NEAR = 8
"""What stays after a burst is found so many steps from its end."""

_FEWEST_AT_END = 8
"""The end of a drift has at least so many steps: the mean of fewer is not certain."""

FEWEST_WITH_SPANS = 8
"""A change names phases if so many steps before it, and since then, have their spans."""

LEAST_OTHER_BATCH = 0.02
"""Batches that differ by less are the same: the last one of an epoch is among them."""


def find_changes(trace: Trace, used: Ints) -> tuple[RunChange, ...]:
    """Return the changes in some steps of a run, in their order. A log's lines show none."""
    if is_log(trace) or not trace.ranks:
        return ()
    anchor = None
    with contextlib.suppress(UnreadableError):  # the rank was killed while it opened its files
        anchor = trace.ranks[0].manifest.anchor
    rank = trace.ranks[0].rank
    found = changes_of(trace.steps, trace.spans, used, rank=rank, anchor=anchor)
    if not trace.sums.num_rows:
        return found
    # between the blocks of a sample, slow steps are missing, and so is their interval
    return tuple(each for each in found if each.kind is not ChangeKind.PERIODIC)


def changes_of(
    steps: pa.Table,
    spans: pa.Table,
    used: Ints,
    *,
    rank: int,
    anchor: Anchor | None,
    spans_from: int = 0,
) -> tuple[RunChange, ...]:
    """Return the changes in some steps, dated by the clocks of one rank.

    Spans of steps before `spans_from` may be missing: those steps show no phases.
    """
    if not len(used):
        return ()
    times = step_times(steps, spans, used)
    levels = _Levels(times, used, spans_from, (steps, spans))
    changes = [levels.describe(*place) for place in levels.places()]
    periodic = find_periodic(used, times.wall_ns, levels.usual_ns)
    if periodic is not None:
        changes.append(levels.describe_periodic(periodic))
    changes = [change for change in changes if _is_sure(change.change)]
    changes.sort(key=lambda each: each.first_step)
    if anchor is None:
        return tuple(changes)
    own, dated = rows_of_rank(steps, rank), []
    for change in changes:
        begun = own.filter(pc.equal(own["step"], change.first_step))["start_ns"].to_pylist()
        unix_ns = None
        if begun:
            unix_ns = begun[0] - anchor.monotonic_ns + anchor.realtime_ns
        dated.append(dataclasses.replace(change, unix_ns=unix_ns))
    return tuple(dated)


class _Levels:
    """The parts of a run between the shifts of its level."""

    def __init__(
        self, times: StepTimes, used: Ints, spans_from: int, tables: tuple[pa.Table, pa.Table]
    ) -> None:
        self._tables = tables
        self._times = times
        self._used = used
        self._has_spans = used >= spans_from
        wall_ns = times.wall_ns
        self._logs = np.log(np.maximum(wall_ns, 1.0))
        settled = find_settled(wall_ns)
        found = find_shifts(wall_ns[settled:])
        if settled and not found:  # fewer steps show less of what differs by chance
            found = [shift for shift in find_shifts(wall_ns) if shift.at > settled + _NEAR]
            settled = 0 if found else settled
        shifts = list(self._with_ends(found, settled))
        self._bounds = [settled, *self._confirmed(shifts, settled), len(used)]
        self.usual_ns = np.empty(len(used))
        for begin, end in itertools.pairwise(sorted({0, *self._bounds})):
            self.usual_ns[begin:end] = math.exp(float(np.median(self._logs[begin:end])))

    def _with_ends(self, shifts: Sequence[Shift], first: int) -> Iterator[Shift]:
        """Yield the shifts after the place `first`, and the ends of those that soon go back."""
        places = [*(first + shift.at for shift in shifts), len(self._logs)]
        for shift, (at, end) in zip(shifts, itertools.pairwise(places), strict=True):
            yield dataclasses.replace(shift, at=at)
            back = at + find_settled(self._times.wall_ns[at:end])
            if back > at:
                yield Shift(back, back, self._rise(at, back, end))

    def _confirmed(self, shifts: Sequence[Shift], first: int) -> list[int]:
        """Return the places of the shifts that the whole parts on both sides confirm.

        The smallest is judged first, because without it the parts of its neighbours are longer.
        """
        kept = [shift.at for shift in shifts]
        for shift in sorted(shifts, key=lambda each: abs(each.rise)):
            bounds = [first, *kept, len(self._logs)]
            place = bounds.index(shift.at)
            begin, end = bounds[place - 1], bounds[place + 1]
            ratio = self._ratio(np.arange(begin, shift.at), np.arange(shift.at, end))[2]
            rise = self._rise(begin, shift.at, end)
            if abs(rise) < LEAST_CHANGE or not _is_sure(ratio):
                kept.remove(shift.at)
        return kept

    def _ratio(self, before: Ints, after: Ints) -> tuple[Estimate, Estimate, Estimate]:
        """Return the mean step of both parts, and by what share the later one is longer."""
        sides = [_mean(self._times.wall_ns[_usual(self._times.wall_ns, before)])]
        sides.append(_mean(self._times.wall_ns[_usual(self._times.wall_ns, after)]))
        return sides[0], sides[1], _less_one(divide(sides[1], sides[0]))

    def places(self) -> Iterator[tuple[ChangeKind, int, int, Ints]]:
        """Yield each change: kind, first place, the place after it, and the places before it.

        Successive shifts of one direction may be a drift, and two that cancel are a burst.
        """
        bounds = self._bounds
        first, last = bounds[0], bounds[-1]
        if len(bounds) == 2 and (drift := find_drift_alone(self._logs[first:])) is not None:
            yield ChangeKind.DRIFT, first + drift, last, np.arange(first, first + drift)
        rises = list(map(self._rise, bounds, bounds[1:], bounds[2:]))
        place = 0
        while place < len(rises):
            begin, at = self._bounds[place], self._bounds[place + 1]
            drift, after = find_drift_among(self._logs, self._bounds, place, rises)
            if drift is not None:
                yield ChangeKind.DRIFT, drift, self._bounds[after + 1], np.arange(begin, drift)
                place = after
                continue
            following, before = self._bounds[place + 2], np.arange(begin, at)
            back = rises[place] + (rises[place + 1] if place + 1 < len(rises) else math.inf)
            if abs(back) <= max(LEAST_CHANGE, _BACK_SHARE * abs(rises[place])):
                yield ChangeKind.BURST, at, following, before
                end = self._bounds[place + 3]
                if self._differ(before, np.arange(following, end)):
                    yield ChangeKind.STEP, following, end, before
                place += 2
                continue
            yield ChangeKind.STEP, at, following, before
            place += 1

    def _differ(self, before: Ints, after: Ints) -> bool:
        """Return true if two levels would differ if nothing had been between them."""
        joined = self._times.wall_ns[np.concatenate([before, after])]
        places = np.array([shift.at for shift in find_shifts(joined)])
        rise = float(np.median(self._logs[after]) - np.median(self._logs[before]))
        is_there = bool((np.abs(places - len(before)) <= _NEAR).any())
        return is_there and abs(rise) >= LEAST_CHANGE

    def _rise(self, before: int, at: int, after: int) -> float:
        return float(np.median(self._logs[at:after]) - np.median(self._logs[before:at]))

    def describe(self, kind: ChangeKind, at: int, end: int, before: Ints) -> RunChange:
        """Return a change with what it costs; `before` is the level before it."""
        after = np.arange(at, end)
        if kind is ChangeKind.DRIFT:  # its end is compared with its beginning
            part = max(_FEWEST_AT_END, (end - at) // 10)
            after = np.arange(end - part, end)
            if len(before) < part:
                before = np.arange(at, at + part)
        return self._compare(kind, at, end, before, after)

    def _compare(self, kind: ChangeKind, at: int, end: int, before: Ints, after: Ints) -> RunChange:
        used = self._used
        last = None if end == len(used) else int(used[end - 1])
        phases = self._phases(before, after)
        change = RunChange(
            kind,
            int(used[at]),
            last,
            None,
            *self._ratio(before, after),
            phases or (),
            phases_known=phases is not None,
            samples=self._samples(before, after),
            before_steps=(int(used[before[0]]), int(used[before[-1]])),
            after_steps=(int(used[after[0]]), int(used[after[-1]])),
        )
        if phases is None or kind is ChangeKind.PERIODIC:
            return change
        sides = []
        for places in (before, after):
            known = places[self._has_spans[places]]
            sides.append(used[_usual(self._times.wall_ns, known)])
        by_ns = change.after_ns.value - change.before_ns.value
        late = find_late(*self._tables, sides[0], sides[1], by_ns)
        return dataclasses.replace(change, late=late)

    def _samples(self, before: Ints, after: Ints) -> tuple[float, float] | None:
        """Return the samples per step on both sides, if most steps have other ones."""
        sides = np.median(self._times.samples[before]), np.median(self._times.samples[after])
        first, then = float(sides[0]), float(sides[1])
        if not first or not then or abs(then / first - 1) < LEAST_OTHER_BATCH:
            return None
        return first, then

    def _phases(self, before: Ints, after: Ints) -> tuple[tuple[str, float], ...] | None:
        """Return the phases that changed in the direction of the whole, the largest first.

        `None` if too few of the steps have their spans.
        """
        if not self._has_spans.all():
            before, after = before[self._has_spans[before]], after[self._has_spans[after]]
            if min(len(before), len(after)) < FEWEST_WITH_SPANS:
                return None
        parts, wall_ns = self._times.parts, self._times.wall_ns
        grown = parts[:, _usual(wall_ns, after)].mean(axis=1)
        grown = grown - parts[:, _usual(wall_ns, before)].mean(axis=1)
        whole = float(grown.sum())
        named = []
        for name, by in zip(self._times.names, grown.tolist(), strict=True):
            if whole and by / whole >= LEAST_NAMED_SHARE:
                named.append((name, by))
        return tuple(sorted(named, key=lambda each: -abs(each[1]))[:MOST_NAMED])

    def describe_periodic(self, found: Periodic) -> RunChange:
        """Return a periodic slow-down: its slow steps compared with the others."""
        slow, first, end = found.places, int(found.places[0]), len(self._used)
        others = np.setdiff1d(np.arange(first, end), slow)
        change = self._compare(ChangeKind.PERIODIC, first, end, others, slow)
        last = None  # slow steps come until the end of the run
        if end - slow[-1] > 2 * found.every:
            last = int(self._used[slow[-1]])
        return dataclasses.replace(change, every=found.every, last_step=last)


def _usual(wall_ns: Floats, places: Ints) -> Ints:
    """Return the places without steps that are far longer than the others."""
    return places[wall_ns[places] <= OUTLIER_FACTOR * np.median(wall_ns[places])]


def _is_sure(change: Estimate) -> bool:
    """Return true if an interval is on one side of zero."""
    if change.low is None or change.high is None:
        return False
    return change.low > 0 or change.high < 0


def _less_one(quotient: Estimate) -> Estimate:
    if quotient.low is None or quotient.high is None:
        return Estimate(quotient.value - 1)
    return Estimate(quotient.value - 1, quotient.low - 1, quotient.high - 1, quotient.level)


def _mean(values: Floats) -> Estimate:
    return estimate_ratios(values[None, :], np.ones((1, len(values))))[0]
