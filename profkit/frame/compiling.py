"""Compilations in a run: the steps in which they were, and their reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import rows_of_rank
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Floats, Ints
from profkit.frame.parts import count_rank_steps
from profkit.trace import Trace
from profkit.trace.reader import events_of
from profkit.vocab import COMPILATIONS, OF_COMPILER, EventKind

MOST_COMPILED_SHARE = 0.5
"""If more than this share of the steps compiled, that is how the job runs: none is excluded."""


NO_GUARD = "a reason that was not kept"
"""The recorder keeps 200 different reasons per process."""


@dataclass(frozen=True)
class Recompiled:
    """A function that was compiled again on one rank, and the last guard that is known."""

    function: str
    guard: str
    times: int
    ns: float


@dataclass(frozen=True)
class Compiling:
    """The compilations of one run. Counts are those of the rank that has most."""

    steps: Ints = field(repr=False)
    """The steps in which some rank compiled, ascending."""
    ranks: tuple[int, ...]
    rank_ns: Floats = field(repr=False)
    """Time by (rank, step) of the above."""
    again: Bools = field(repr=False)
    """Of the same: true if a guard failed. What else compiled in such a step mostly follows."""
    of_steps: int
    """The number of all steps of the run."""
    compilations: int
    outside_ns: float
    """Time outside all recorded steps, such as before the first, on the rank with most of it."""
    recompiled: tuple[Recompiled, ...]
    """The longest first."""
    breaks: tuple[tuple[str, int], ...]
    """Places and reasons of graph breaks, and how often each was met, the most frequent first."""
    over_limit: tuple[tuple[str, int], ...] = ()
    """Functions that are compiled no more, with the number of their variants."""
    failed: tuple[tuple[tuple[str, str], int], ...] = ()
    """Functions that could not be compiled with the reason, and how often; the most first."""

    @property
    def ns(self) -> float:
        """The time of the compiled steps that compilations took, each on its slowest rank."""
        return float(self.rank_ns.max(axis=0).sum()) if self.rank_ns.size else 0.0


def find_compiling(trace: Trace) -> Compiling | None:
    """Return what the compiler did; `None` if it did nothing that was seen."""
    events = events_of(trace.events, *OF_COMPILER)
    if not events.num_rows:
        return None
    timed, outside = [], [0.0]
    of_steps = len(pc.unique(trace.steps["step"]))
    if trace.sums.num_rows:
        of_steps = count_rank_steps(trace.steps, trace.sums) // max(1, len(trace.ranks))
    ranks = tuple(np.unique(trace.steps["rank"].to_numpy()).tolist())
    for rank in ranks:
        own = _times(rows_of_rank(events, rank))
        place = _place_in_steps(rows_of_rank(trace.steps, rank), own)
        outside.append(float(own["value"].to_numpy()[place < 0].sum()))
        timed.append((place, own))
    steps = np.unique(np.concatenate([place for place, _ in timed] or [np.empty(0, np.int64)]))
    steps = steps[steps >= 0]
    rank_ns, again = np.zeros((2, len(ranks), len(steps)))
    for row, (place, own) in enumerate(timed):
        column, inside = np.searchsorted(steps, place), place >= 0
        np.add.at(rank_ns[row], column[inside], own["value"].to_numpy()[inside])
        again[row, column[inside & _is_again(own)]] = 1
    recompiled, compilations = _named(events)
    counts = of_steps, compilations, max(outside)
    breaks = tuple((place, times) for (place, _), times in _noted(events, EventKind.GRAPH_BREAK))
    noted = breaks, _over_limit(events), _noted(events, EventKind.NOT_COMPILED)
    return Compiling(steps, ranks, rank_ns, again > 0, *counts, recompiled, *noted)


def find_recompiled(trace: Trace, steps: Ints) -> tuple[Recompiled, ...]:
    """Return the functions that were compiled again in these steps, the longest first."""
    events = events_of(trace.events, *OF_COMPILER)
    kept = [events.slice(0, 0)]
    for rank in pc.unique(events["rank"]).to_pylist():
        own = _times(rows_of_rank(events, rank))
        place = _place_in_steps(rows_of_rank(trace.steps, rank), own)
        kept.append(own.filter(pa.array(np.isin(place, steps))))
    return _named(pa.concat_tables(kept))[0]


def _times(events: pa.Table) -> pa.Table:
    """Return the rows that hold the time of a compilation."""
    own = events_of(events, *COMPILATIONS)
    values = own["value"].to_numpy()
    return own.filter(pa.array(np.isfinite(values) & (values >= 0)))


def _is_again(events: pa.Table) -> Bools:
    found = pc.equal(events["kind"], EventKind.RECOMPILED.value)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def _place_in_steps(steps: pa.Table, events: pa.Table) -> Ints:
    """Return the step in which each compilation of a rank ended, or -1."""
    at = events["time_ns"].to_numpy()
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    if not len(starts):
        return np.full(len(at), -1, dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    row = order[np.maximum(0, np.searchsorted(starts[order], at, side="right") - 1)]
    inside = (at >= starts[row]) & (at <= ends[row])
    return np.where(inside, steps["step"].to_numpy()[row], -1)


def _named(events: pa.Table) -> tuple[tuple[Recompiled, ...], int]:
    """Return what was compiled again, and the number of compilations."""
    found: dict[str, Recompiled] = {}
    counts: Counter[int] = Counter()
    times: Counter[tuple[int, str]] = Counter()
    took_ns: dict[tuple[int, str], float] = defaultdict(float)
    guards: dict[str, str] = {}
    names = ("rank", "kind", "name", "detail", "value")
    columns = (events[name].to_pylist() for name in names)
    for rank, kind, function, guard, value in zip(*columns, strict=True):
        if kind not in COMPILATIONS:
            continue
        counts[rank] += 1
        if kind == EventKind.RECOMPILED:
            times[rank, function] += 1
            took_ns[rank, function] += value or 0.0
            guards[function] = guard or guards.get(function, NO_GUARD)
    for (rank, function), count in times.items():
        known = found.get(function)
        if known is None or count > known.times:
            ns = took_ns[rank, function]
            found[function] = Recompiled(function, guards[function], count, ns)
    recompiled = tuple(sorted(found.values(), key=lambda each: -each.ns))
    return recompiled, max(counts.values(), default=0)


def _noted(events: pa.Table, kind: EventKind) -> tuple[tuple[tuple[str, str], int], ...]:
    """Return what was noted of this kind, and how often, on the rank with most of each."""
    own = events_of(events, kind)
    rows = zip(*(own[name].to_pylist() for name in ("rank", "name", "detail")), strict=True)
    most: dict[tuple[str, str], int] = {}
    for (_, name, detail), count in Counter(rows).items():
        what = name, detail or ""
        most[what] = max(count, most.get(what, 0))
    return tuple(sorted(most.items(), key=lambda each: (-each[1], each[0])))


def join_reason(name: str, reason: str) -> str:
    return f"{name}: {reason}" if reason else name


def _over_limit(events: pa.Table) -> tuple[tuple[str, int], ...]:
    """Return the functions that have too many variants, in order of time, with their number."""
    own = events_of(events, EventKind.OVER_LIMIT).sort_by("time_ns")
    limits = map(int, own["value"].to_pylist())
    return tuple(dict(zip(own["name"].to_pylist(), limits, strict=True)).items())


def steps_compiled(steps: pa.Table, events: pa.Table) -> Ints:
    """Return the steps of one rank in which one of these compilations ended."""
    place = _place_in_steps(steps, _times(events))
    return np.unique(place[place >= 0])


def compiled_steps(steps: pa.Table, events: pa.Table) -> Ints:
    """Return the steps in which some rank compiled."""
    events = events_of(events, *OF_COMPILER)
    found = [np.empty(0, dtype=np.int64)]
    for rank in pc.unique(events["rank"]).to_pylist():
        found.append(steps_compiled(rows_of_rank(steps, rank), rows_of_rank(events, rank)))
    return np.unique(np.concatenate(found))
