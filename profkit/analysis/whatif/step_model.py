"""The steps of any recorded run as work of ranks between the points at which they meet.

Each rank works through its step in one line. A collective begins when its last rank is ready and
the one before it on its communicator is done. A rank waits for collectives where it waited for them
in the run. What a wait took beyond that is a cost of its own and stays as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.whatif.loader_model import LoaderLine, find_loader
from profkit.analysis.whatif.meetings import JOIN, Events, Meetings, ReplayError, find_meetings
from profkit.errors import UnreadableError
from profkit.frame.columns import (
    codes_of,
    durations,
    places_in,
    rows_of_steps,
    split_ranks,
    step_places,
)
from profkit.frame.device_clock import Bools, find_parents, levels_of
from profkit.frame.estimate import Floats, Ints
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import PhaseBasis
from profkit.trace import Trace
from profkit.vocab import PHASES, Phase

PARTS = (*PHASES, UNKNOWN)
"""The parts of a rank's work; `allreduce` is what a wait took beyond its collectives."""

EXCHANGE, DATA = PARTS.index(Phase.ALLREDUCE.value), PARTS.index(Phase.DATA.value)
OWN = np.arange(len(PARTS)) != EXCHANGE
"""The parts that a rank works on by itself."""

MOST_STEPS, BLOCKS = 4_000, 8
"""If a run has more steps, this many are replayed, in blocks from all of it."""


@dataclass(frozen=True, eq=False)
class Line:
    """One rank: its work between its events by (gap, part, step), and its events.

    An event is the number of a collective that it launches, or the numbers of those it waits for.
    """

    rank: int
    work: Floats
    events: tuple[int | tuple[int, ...], ...]
    loader: LoaderLine | None = None


@dataclass(frozen=True, eq=False)
class StepModel:
    """A run, ready to be replayed. Times are in ns."""

    steps: Ints
    lines: tuple[Line, ...]
    wall: Floats
    """The measured steps by (rank, step)."""
    transfer: Floats
    """The time of each collective without waiting, by (collective, step)."""
    members: tuple[frozenset[int], ...]
    """The ranks that take part in each collective."""
    previous: tuple[int, ...]
    """The collective before it on the same communicator, or -1."""
    sizes: Floats
    """The mean bytes of each collective; zero if they are not known."""
    left_out: int
    """Steps that differ from the others in their collectives."""
    detailed: bool
    """True if single collectives are replayed, false if exposed waits or nothing are."""
    buckets: Bools
    """Which collectives are buckets of gradients; nobody knows it of exposed waits."""

    @property
    def ranks(self) -> list[int]:
        return [line.rank for line in self.lines]

    @property
    def loaders(self) -> tuple[LoaderLine, ...]:
        """The loader of each rank; empty unless all of them are known."""
        found = tuple(filter(None, map(operator.attrgetter("loader"), self.lines)))
        if len(found) < len(self.lines):
            return ()
        return found

    def own_work(self) -> Floats:
        """Return the time of each rank's step without waiting for others, by (rank, step)."""
        return self._sum(OWN)

    def part(self, name: str) -> Floats:
        """Return the time in one part by (rank, step)."""
        return self._sum(np.arange(len(PARTS)) == PARTS.index(name))

    def _sum(self, parts: Bools) -> Floats:
        return np.stack([line.work[:, parts].sum(axis=(0, 1)) for line in self.lines])

    def with_part(self, name: str, times: Floats) -> StepModel:
        """Return the model with other times in a part, by (rank, step).

        The time is spread over the gaps as it is now. If input gets another time, the loader that
        explains it goes.
        """
        lines = []
        for line, wanted in zip(self.lines, times, strict=True):
            work = set_part(line.work, PARTS.index(name), wanted)
            loader = None if name == Phase.DATA.value else line.loader
            lines.append(dataclasses.replace(line, work=work, loader=loader))
        return dataclasses.replace(self, lines=tuple(lines))


def set_part(work: Floats, place: int, wanted: Floats) -> Floats:
    """Return the work of a rank with another time per step in one part."""
    work, now = work.copy(), work[:, place].sum(axis=0)
    share = np.divide(wanted, now, out=np.zeros_like(now), where=now > 0)
    usual_gap = int(np.argmax(work[:, place].mean(axis=1)))
    work[:, place] *= share
    work[usual_gap, place] += wanted - work[:, place].sum(axis=0)
    return work


def build_model(trace: Trace, basis: PhaseBasis) -> StepModel:
    """Return the model of a run's used steps; raise `ReplayError` if it has too few of them."""
    used = choose_steps(basis.used)
    if len(used) < 2:
        raise ReplayError("the run has too few steps to be replayed")
    steps, spans = rows_of_steps(basis.steps, used), rows_of_steps(basis.spans, used)
    ranks = np.unique(steps["rank"].to_numpy()).tolist()
    collectives = rows_of_steps(basis.collectives, used)
    met = find_meetings(spans, collectives, ranks, used, hosts=len(ranks_by_host(trace)))
    kept = met.kept
    if kept.sum() < 2:
        raise ReplayError("the steps of the ranks have too little in common to be replayed")
    lines, walls = [], []
    steps_of, spans_of = split_ranks(basis.steps), split_ranks(basis.spans)
    data = trace.spans.filter(pc.equal(trace.spans["phase"], Phase.DATA.value))
    used_of, recorded = split_ranks(spans), split_ranks(data)
    nothing = spans.slice(0, 0)
    for rank in ranks:
        own_steps, own_spans = steps_of[rank], spans_of.get(rank, nothing)
        bounds = find_bounds(own_steps, own_spans, used)
        place = step_places(own_steps, used)
        wall = np.zeros(len(used))
        wall[place[place >= 0]] = durations(own_steps)[place >= 0]
        walls.append(wall[kept])
        events, waits = met.events[rank], met.waits(rank, kept)
        work = find_work(used_of.get(rank, nothing), events, waits, bounds, met)
        prefetch = trace.manifest.config.get("prefetch")
        loader = find_loader(recorded.get(rank, nothing), prefetch, used[kept])
        if loader is not None:  # a device may not notice what taking a batch costs the host
            exposed = float(np.median(work[:, DATA][:, kept].sum(axis=0)))
            loader = dataclasses.replace(loader, taking=min(loader.taking, exposed))
        lines.append(Line(rank, work[:, :, kept], waits, loader))
    return StepModel(
        steps=used[kept],
        lines=tuple(lines),
        wall=np.stack(walls),
        transfer=met.transfers()[:, kept],
        members=met.members,
        previous=met.previous,
        sizes=met.sizes(),
        left_out=int((~kept).sum()),
        detailed=met.detailed,
        buckets=find_buckets(met, collectives, used),
    )


def ranks_by_host(trace: Trace) -> dict[str, list[int]]:
    """Return the ranks of each host; one that does not say its host has a host of its own."""
    found: dict[str, list[int]] = {}
    for rank in trace.ranks:
        host = f"of rank {rank.rank}"
        with contextlib.suppress(UnreadableError):
            host = rank.manifest.host
        found.setdefault(host, []).append(rank.rank)
    return found


def choose_steps(used: Ints) -> Ints:
    if len(used) <= MOST_STEPS:
        return used
    size = MOST_STEPS // BLOCKS
    starts = np.linspace(0, len(used) - size, BLOCKS).astype(np.int64)
    return used[np.unique(starts[:, None] + np.arange(size))]


def find_bounds(steps: pa.Table, spans: pa.Table, used: Ints) -> Ints:
    """Return where each used step of a rank begins and ends, as an array of (bound, step).

    On a device's clock, the spans of a step may end after the host has left it.
    """
    order = np.argsort(steps["step"].to_numpy())
    number = steps["step"].to_numpy()[order]
    start, end = steps["start_ns"].to_numpy()[order], steps["end_ns"].to_numpy()[order].copy()
    place = step_places(spans, number)
    outer = (place >= 0) & (spans["depth"].to_numpy() == 0)
    np.maximum.at(end, place[outer], spans["end_ns"].to_numpy()[outer])
    begin = start.copy()
    begin[1:] = np.where(np.diff(number) == 1, np.maximum(start[1:], end[:-1]), start[1:])
    chosen = np.minimum(np.searchsorted(number, used), len(number) - 1)
    if not (number[chosen] == used).all():
        raise ReplayError("a rank lacks some of the steps")
    return np.stack([begin[chosen], np.maximum(end[chosen], begin[chosen])])


def find_work(
    spans: pa.Table,
    events: Events,
    waits: tuple[int | tuple[int, ...], ...],
    bounds: Ints,
    met: Meetings,
) -> Floats:
    """Return the work of a rank by (gap, part, step); the last part is what no phase covers.

    Of the exchange, only what a wait took beyond its collectives is left, after the wait.
    """
    times = np.concatenate([bounds[:1], events.times, bounds[1:]])
    inside = time_between(spans, times, PHASES)
    gaps = np.diff(times, axis=0)
    unknown = gaps - inside.sum(axis=1)
    work = np.concatenate([inside, unknown[:, None]], axis=1).astype(np.float64)
    if not met.members:
        return work
    waited, ends = np.zeros(work.shape[2]), dict[int, Ints]()
    exchange = work[:, EXCHANGE].copy()
    work[:, EXCHANGE] = 0.0
    for place, event in enumerate(waits):
        waited = waited + exchange[place]
        if isinstance(event, int):
            ends[event] = events.ends[place]
            continue
        ready = events.times[place] - waited
        for number in event:
            ready = np.maximum(ready, ends[number])
        work[place + 1, EXCHANGE] = events.times[place] - ready
        waited = np.zeros_like(waited)
    work[-1, EXCHANGE] += waited + exchange[-1]
    return work


def find_buckets(met: Meetings, collectives: pa.Table, used: Ints) -> Bools:
    """Return which single collectives of a step are buckets of gradients."""
    found = np.zeros(len(met.members), dtype=bool)
    if not met.detailed:
        return found
    place = int(np.argmax(met.kept))
    is_bucket = collectives["bucket"].is_valid().to_numpy()
    chosen = (collectives["step"].to_numpy() == used[place]) & is_bucket
    codes = codes_of(collectives["communicator"])[chosen].tolist()
    known = set(zip(codes, collectives["sequence"].to_numpy()[chosen].tolist(), strict=True))
    for rank, events in met.events.items():
        for event, number in enumerate(met.numbers[rank]):
            if number != JOIN:
                found[number] |= (events.codes[event], int(events.sequences[event, place])) in known
    return found


def time_between(spans: pa.Table, times: Ints, phases: Sequence[str]) -> Ints:
    """Return the time in each phase between neighbouring times, by (gap, phase, step).

    `times` is by (point, step). The spans are those of one rank; only the thread with the most time
    in phases counts. A span inside one of another phase counts for its own phase alone.
    """
    found = np.zeros((len(times) - 1, len(phases), times.shape[1]), dtype=np.int64)
    if not spans.num_rows or not times.size:
        return found
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    phase, level, thread = places_in(spans["phase"], phases), levels_of(spans), spans["thread"]
    lane = codes_of(thread) + 1  # a span of no thread has a lane of its own
    trains = int(np.argmax(np.bincount(lane, weights=np.where(level, 0, end - start))))
    mine = lane == trains
    start, end, phase = start[mine], end[mine], phase[mine]
    level, lane = level[mine], lane[mine]
    inner = np.flatnonzero(level)
    around = find_parents(lane, level, start, end, inner)
    inner, around = inner[around >= 0], around[around >= 0]
    for place in range(len(phases)):
        own, nested = phase == place, inner[phase[around] == place]
        if own.any():
            until = _time_until(start[own], end[own], times)
            if len(nested):
                until -= _time_until(start[nested], end[nested], times)
            found[:, place] = np.diff(until, axis=0)
    return found


def _time_until(start: Ints, end: Ints, times: Ints) -> Ints:
    """Return how much of these intervals is before each of the times; overlaps count twice."""
    return _since(start, times) - _since(end, times)


def _since(begins: Ints, times: Ints) -> Ints:
    """Return the sum of the times since all of these points that are in the past."""
    if not len(begins):
        return np.zeros_like(times)
    begins = np.sort(begins)
    origin = begins[0]
    sums = np.concatenate([[0], np.cumsum(begins - origin)])
    past = np.searchsorted(begins, times, side="right")
    return np.asarray(past * (times - origin) - sums[past], dtype=np.int64)
