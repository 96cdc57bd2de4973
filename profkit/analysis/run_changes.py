"""Changes of a run's step time while it lasts: steps, drifts, bursts, periodic slow steps."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.change_levels import Levels, is_sure, usual_places
from profkit.analysis.run_change import ChangeKind, LateSince, RunChange
from profkit.clock import Anchor
from profkit.errors import UnreadableError
from profkit.frame.columns import rows_of_rank, split_ranks
from profkit.frame.estimate import Floats, Ints, binomial_bound, estimate_ratios, subtract
from profkit.frame.notices import is_log
from profkit.frame.phases import StepTimes, step_times
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from profkit.vocab import Phase

MOST_NAMED = 3
"""Phases that a change names, the largest first."""

LEAST_NAMED_SHARE = 0.15
"""A phase is named if it makes at least this share of the change."""

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
    frame = frame_of(trace)
    times, works = frame.times(used), frame.by_phase
    found = describe_changes(trace.steps, used, times, works, rank=rank, anchor=anchor)
    if not (trace.sums.num_rows or frame.level):
        return found
    # between the blocks of a sample, slow steps are missing, and so is their interval
    return tuple(each for each in found if each.kind is not ChangeKind.PERIODIC)


Works: TypeAlias = Callable[[Ints], Mapping[int, Mapping[str, Floats]]]
"""Returns the time of each rank by phase and step, in some steps."""


def works_of(steps: pa.Table, spans: pa.Table) -> Works:
    """Return the time of each rank in these tables."""
    own, of_rank = split_ranks(steps), split_ranks(spans)

    def works(used: Ints) -> dict[int, dict[str, Floats]]:
        found = {}
        for rank, rows in own.items():
            times = step_times(rows, of_rank[rank], used)
            found[rank] = dict(zip(times.names, times.parts, strict=True))
        return found

    return works


def changes_of(
    steps: pa.Table,
    spans: pa.Table,
    used: Ints,
    *,
    rank: int,
    anchor: Anchor | None,
    spans_from: int = 0,
) -> tuple[RunChange, ...]:
    """Return the changes in some steps, of these tables, dated by the clocks of one rank.

    Spans of steps before `spans_from` may be missing: those steps show no phases.
    """
    times = step_times(steps, spans, used)
    works = works_of(steps, spans)
    return describe_changes(
        steps, used, times, works, rank=rank, anchor=anchor, spans_from=spans_from
    )


def describe_changes(
    steps: pa.Table,
    used: Ints,
    times: StepTimes,
    works: Works,
    *,
    rank: int,
    anchor: Anchor | None,
    spans_from: int = 0,
) -> tuple[RunChange, ...]:
    """Return the changes in some steps; `works` returns the time of each rank by phase."""
    if not len(used):
        return ()
    levels = _Described(times, used, spans_from, works)
    changes = [levels.describe(*place) for place in levels.places()]
    periodic = find_periodic(used, times.wall_ns, levels.usual_ns())
    if periodic is not None:
        changes.append(levels.describe_periodic(periodic))
    changes = [change for change in changes if is_sure(change.change)]
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


class _Described(Levels):
    """The levels of a run's steps, whose changes say what they cost."""

    def __init__(
        self,
        times: StepTimes,
        used: Ints,
        spans_from: int,
        works: Works,
    ) -> None:
        super().__init__(times.wall_ns)
        self._works = works
        self._times = times
        self._used = used
        self._has_spans = used >= spans_from

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
            *self.ratio(before, after),
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
            sides.append(used[usual_places(self._times.wall_ns, known)])
        by_ns = change.after_ns.value - change.before_ns.value
        late = find_late(self._works, sides[0], sides[1], by_ns)
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
        grown = parts[:, usual_places(wall_ns, after)].mean(axis=1)
        grown = grown - parts[:, usual_places(wall_ns, before)].mean(axis=1)
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


# The rank whose own work became longer than the others' at a change of the step time.
LEAST_SHARE = 0.5
"""A rank is late if it explains at least this share of the change."""


def find_late(works: Works, before: Ints, after: Ints, change_ns: float) -> LateSince | None:
    """Return the rank that grew most beyond the others' median, if that explains the change.

    The wait for other ranks is no work of a rank.
    """
    if change_ns <= 0 or not len(before) or not len(after):
        return None
    found = works(np.concatenate([before, after]))
    if len(found) < 2:
        return None
    work = []
    for phases in found.values():
        own = {name: ns for name, ns in phases.items() if name != Phase.ALLREDUCE.value}
        work.append(own)
    whole = np.stack([np.sum(list(phases.values()), axis=0) for phases in work])
    split = len(before)
    own_ns = _growth(whole, split)
    late = int(own_ns.argmax())
    later_ns = float(own_ns[late]) - float(np.median(np.delete(own_ns, late)))
    ahead = whole[late] - np.median(np.delete(whole, late, axis=0), axis=0)
    if later_ns < LEAST_SHARE * change_ns or not _surely_grew(ahead, split):
        return None
    others = [phases for place, phases in enumerate(work) if place != late]
    later = {}
    for name, ns in work[late].items():
        growths = [float(_growth(phases.get(name, np.zeros(1)), split)) for phases in others]
        later[name] = float(_growth(ns, split)) - float(np.median(growths))
    return LateSince(list(found)[late], max(later, key=lambda name: later[name]), later_ns)


def _growth(series: Floats, split: int) -> Floats:
    """Return how much longer the steps from a place on are than those before it."""
    return np.asarray(series[..., split:].mean(axis=-1) - series[..., :split].mean(axis=-1))


def _surely_grew(series: Floats, split: int) -> bool:
    """Return true if the interval of the growth is above zero; too few steps have none."""
    sides = []
    for part in (series[:split], series[split:]):
        sides.append(estimate_ratios(part[None, :], np.ones((1, len(part))))[0])
    grown = subtract(sides[1], sides[0])
    return grown.low is not None and grown.low > 0


# Finds steps that are slow at regular intervals, such as those that save or log.
LEAST_SLOWER = 0.2
"""A slow step takes at least this share longer than the others."""

SCATTER_FACTOR = 6.0
"""A slow step is so many times the scatter of the others above them."""

FEWEST_SLOW = 8
"""Fewer slow steps allow no interval."""

SHORTEST_PERIOD = 3
MOST_OTHER_GAPS = 0.2
"""This share of the gaps between slow steps may differ from the period."""

BY_CHANCE = 1e-4
"""Slow steps without order make as many regular gaps with at most this probability."""

_SLOWEST_FROM = 0.75
"""If slow steps have no order, those may have one that are half as slow as this quantile of them.

Steps that the machine makes a fifth longer come among those that evaluate or save.
"""

LEAST_COST = 0.005
"""Slow steps that cost less than this share of the run's time are not worth a line."""


@dataclass(frozen=True)
class Periodic:
    """Slow steps at regular intervals, by their places in the series."""

    every: int
    places: Ints = field(repr=False)


def find_periodic(numbers: Ints, step_ns: Floats, usual_ns: Floats) -> Periodic | None:
    """Return the slow steps of a series with a known level, if they come regularly.

    Steps may be missing, so that gaps may be several periods long.
    """
    logs = np.log(np.maximum(step_ns, 1.0) / np.maximum(usual_ns, 1.0))
    scatter = 0.0
    if len(logs):
        scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    slow = np.flatnonzero(logs > max(np.log1p(LEAST_SLOWER), SCATTER_FACTOR * scatter))
    if len(slow) < FEWEST_SLOW:
        return None
    excess = logs[slow]
    slowest = slow[excess > float(np.quantile(excess, _SLOWEST_FROM)) / 2]
    for places in (slow, slowest):
        found = _find_order(numbers, places)
        if found is None:
            continue
        cost_ns = float((step_ns[found.places] - usual_ns[found.places]).sum())
        if cost_ns >= LEAST_COST * step_ns[found.places[0] :].sum():
            return found
    return None


def _find_order(numbers: Ints, slow: Ints) -> Periodic | None:
    """Return those of the slow steps that come at a regular interval, if most of them do."""
    # What slows a step may slow the next ones, too: the first of them counts.
    slow = slow[np.diff(numbers[slow], prepend=-2) > 1]
    if len(slow) < FEWEST_SLOW:
        return None
    gaps = np.diff(numbers[slow])
    every = int(np.median(gaps))
    if every < SHORTEST_PERIOD:
        return None
    apart = np.abs(gaps - every * np.maximum(1, np.rint(gaps / every)))
    for most in (0, max(1, every // 20)):  # a clock may decide which step is slow
        regular = apart <= most
        if _is_order(float(regular.mean()), len(gaps), (1 + 2 * most) / every):
            kept = np.concatenate([[regular[0]], regular[:-1] | regular[1:], [regular[-1]]])
            return Periodic(every, slow[kept])
    return None


def _is_order(share: float, gaps: int, by_chance: float) -> bool:
    """Return true if far more of the gaps are regular than the share that is so by chance."""
    if share < 1 - MOST_OTHER_GAPS:
        return False
    return binomial_bound(share * gaps, (1 - share) * gaps, by_chance) <= BY_CHANCE
