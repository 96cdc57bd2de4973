"""The exchange of a sharded job by dimension, and the idle time of a pipeline's stages."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.exchange_places import (
    Place,
    Places,
    describe_unmatched,
    find_places,
    is_sharded,
)
from profkit.frame.calls import Calls
from profkit.frame.estimate import NEGLIGIBLE
from profkit.frame.exchange import LATE_SHARE, by_chance, count_late_steps
from profkit.frame.intervals import covered_each, union_length
from profkit.frame.pipelines import MESSAGES, find_pipelines
from profkit.frame.run_frame import PhaseBasis
from profkit.text import plural
from profkit.trace import Trace
from profkit.vocab import Phase

EVEN_SCHEDULES = (
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
)
"""The schedules whose idle time is known: each rank waits once for all other stages to fill."""

PIPELINE = "pipeline"
"""The part of a rank's configuration that describes its pipeline."""


@dataclass(frozen=True)
class PlaceCost:
    """The collectives of one dimension, operation and phase, in ns per step and rank.

    Waiting and transfer are `None` if collectives were not seen on all of their ranks.
    """

    dimension: str
    op: str
    around: str
    group_size: int
    operations: float
    bytes: float
    exposed_ns: float
    waiting_ns: float | None
    transfer_ns: float | None
    hidden_ns: float
    """The time in which one was under way and its rank waited for nothing."""
    modules: Mapping[str, float] = field(default_factory=dict)
    """The exposed time of each module, the longest first."""


@dataclass(frozen=True)
class LateInDimension:
    """The rank of a dimension that the others of its group wait for."""

    dimension: str
    rank: int
    share: float
    """The share of the waiting in this dimension that is for it."""
    waited_ns: float
    """The mean time per step that each rank which waits for it does so."""


@dataclass(frozen=True)
class StageCost:
    """One rank of a pipeline, in ns per step. The parts add up to its waits for messages."""

    rank: int
    stages: tuple[int, ...]
    """The numbers of its stages; empty if the run does not say it."""
    compute_ns: float
    exposed_ns: float
    imbalance_ns: float | None
    """How much less it computes than the slowest rank of its pipeline; `None` without all ranks."""
    bubble_ns: float | None
    """The time in which the schedule fills and drains the other stages; `None` if not known."""
    rest_ns: float | None
    """Transfers, late ranks and all else; it may be negative."""


@dataclass(frozen=True)
class Pipeline:
    """The stages of a job's pipelines, by rank."""

    schedule: str
    """Empty if the run does not say it."""
    microbatches: int
    stages: tuple[StageCost, ...]
    why: str = ""
    """Why the parts of the waits are not known: not all stages were recorded."""


@dataclass(frozen=True)
class ShardedExchange:
    """The exchange of a sharded job."""

    places: tuple[PlaceCost, ...]
    late: tuple[LateInDimension, ...]
    pipeline: Pipeline | None
    is_complete: bool
    """True if all collectives were seen on all of their ranks."""
    why: str = ""
    """Why waiting and transfer are not known in some dimensions; empty if they are."""
    unknown: tuple[str, ...] = ()
    """Those dimensions."""
    next: str = ""
    """What to measure next; empty if all ranks were recorded."""


def sharded_exchange(trace: Trace, basis: PhaseBasis) -> ShardedExchange | None:
    """Return the exchange by dimension; `None` if the job is not sharded or not timed."""
    layout = basis.calls.layout if isinstance(basis.calls, Calls) else basis.calls
    if basis.why_no_exchange or not is_sharded(layout):
        return None
    found = find_places(basis.collectives, basis.spans, basis.used)
    if found is None:
        return None
    why = what_next = ""
    if not found.is_complete:
        why = describe_unmatched(found.found)
    if why and trace.missing_ranks:
        why = f"{plural(len(trace.missing_ranks), 'rank')} left no files"
        what_next = "record all ranks"
    step_ns = basis.step_ns
    return ShardedExchange(
        tuple(cost_places(found)),
        tuple(find_late(found, step_ns)),
        cost_pipeline(trace, basis, found),
        found.is_complete,
        why,
        tuple(sorted(found.unknown)),
        what_next,
    )


def cost_places(found: Places) -> Iterator[PlaceCost]:
    """Yield the cost of each place, its modules together, the longest exposed time first."""
    waits, rows = found.waits, found.found.rows
    kinds: dict[Place, list[int]] = defaultdict(list)
    for number, place in enumerate(found.places):
        kinds[place._replace(module="")].append(number)
    per = 1 / (found.ranks * len(found.steps))
    exposed = np.bincount(waits.place, weights=waits.exposed, minlength=len(found.places)) * per
    size, group_size = rows["bytes"].to_numpy(), rows["group_size"].to_numpy()
    costs = []
    for place, numbers in kinds.items():
        own, waited = np.isin(found.place, numbers), np.isin(waits.place, numbers)
        flying, moving = waits.flying[waited].sum() * per, waits.moving[waited].sum() * per
        modules = {}
        for number in numbers:
            if found.places[number].module:
                modules[found.places[number].module] = float(exposed[number])
        cost = PlaceCost(
            place.dimension,
            place.op,
            place.around,
            group_size=int(group_size[own].max(initial=0)),
            operations=float(own.sum()) * per,
            bytes=float(size[own].sum()) * per,
            exposed_ns=float(exposed[numbers].sum()),
            waiting_ns=None if place.dimension in found.unknown else float(flying - moving),
            transfer_ns=None if place.dimension in found.unknown else float(moving),
            hidden_ns=_hidden_ns(found, own) * per,
            modules=dict(sorted(modules.items(), key=lambda each: -each[1])),
        )
        costs.append(cost)
    yield from sorted(costs, key=lambda each: -each.exposed_ns)


def _hidden_ns(found: Places, own: Any) -> float:
    """Return how long collectives were under way while their rank waited for nothing."""
    total = 0.0
    for rank in np.unique(found.found.rank[own]).tolist():
        mine, waited = own & (found.found.rank == rank), found.waits.rank == rank
        start, end = found.found.start[mine], found.found.end[mine]
        opens, closes = found.waits.start[waited], found.waits.end[waited]
        total += union_length(start, end) - float(covered_each(start, end, opens, closes).sum())
    return total


def find_late(found: Places, step_ns: float) -> Iterator[LateInDimension]:
    """Yield the late rank of each dimension that has one.

    Ranks are compared within the groups of a dimension: those that wait are in the late one's.
    Groups with several stages of a pipeline name nobody, because those end by their schedule.
    """
    waits = found.waits
    late = found.found.late_rank[waits.row]
    names = np.array([place.dimension for place in found.places])[waits.place]
    waiting = waits.flying - waits.moving
    for dimension in sorted(set(names.tolist()) - found.unknown):
        told = (names == dimension) & (late >= 0) & (late != waits.rank)
        total = float(waiting[told].sum())
        if total <= 0:
            continue
        sums = np.bincount(late[told], weights=waiting[told])
        rank = int(np.argmax(sums))
        waiters = np.unique(waits.rank[told & (late == rank)])
        waited_ns = float(sums[rank]) / (len(waiters) * len(found.steps))
        by_step = count_late_steps(waits.step[told], late[told], waiting[told])
        ranks = len(np.unique(waits.rank[names == dimension]))
        if (
            sums[rank] >= LATE_SHARE * total
            and waited_ns > NEGLIGIBLE * step_ns
            and not by_chance(by_step, rank, ranks)
        ):
            yield LateInDimension(dimension, rank, float(sums[rank]) / total, waited_ns)


def cost_pipeline(trace: Trace, basis: PhaseBasis, found: Places) -> Pipeline | None:
    """Return the stages of the run's pipelines, or `None` if it has none."""
    is_message = np.isin([place.op for place in found.places], MESSAGES)
    rows, waits = is_message[found.place], found.waits
    microbatches = len(pc.unique(found.found.rows["microbatch"].filter(pa.array(rows)).drop_null()))
    if not rows.any() or not microbatches:
        return None
    facts: dict[int, Mapping[str, Any]] = {}
    schedules = set()
    for trained in trace.ranks:
        described = trained.manifest.config.get(PIPELINE)
        facts[trained.rank] = described if isinstance(described, Mapping) else {}
        schedules.add(str(facts[trained.rank].get("schedule", "")))
    pipelines = find_pipelines(found.found.rows)
    why = why_incomplete(trace, pipelines, facts)
    if why:  # the ranks that speak of a pipeline, also those whose neighbours are missing
        known = {rank for rank, own in facts.items() if own}
        pipelines = [sorted(known.union(*pipelines))]
    count = len(found.steps)
    at_messages = is_message[waits.place]
    compute_ns = functools.partial(_compute_ns, basis)
    stages = []
    for members in pipelines:
        compute = dict(zip(members, map(compute_ns, members), strict=True))
        slowest = max(compute.values(), default=0.0)
        for rank in members:
            own = facts.get(rank, {})
            numbers = own_stages(own)
            exposed = float(waits.exposed[at_messages & (waits.rank == rank)].sum()) / count
            idle = bubble = rest = None
            if not why:
                idle = slowest - compute[rank]
            if idle is not None and own.get("schedule") in EVEN_SCHEDULES and numbers:
                bubble = (sum(compute.values()) - slowest) / (microbatches * len(numbers))
                rest = exposed - idle - bubble
            stages.append(StageCost(rank, numbers, compute[rank], exposed, idle, bubble, rest))
    if not stages:
        return None
    return Pipeline(
        schedules.pop() if len(schedules) == 1 else "",
        microbatches,
        tuple(sorted(stages, key=lambda each: each.rank)),
        why,
    )


def own_stages(described: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers of a rank's stages; none if its configuration does not say them."""
    numbers = described.get("own_stages")
    if not isinstance(numbers, list) or not all(isinstance(each, int) for each in numbers):
        return ()
    return tuple(numbers)


def why_incomplete(
    trace: Trace, pipelines: Sequence[Sequence[int]], facts: Mapping[int, Mapping[str, Any]]
) -> str:
    """Return why some stage of a pipeline is missing in a run; empty if none is known to be."""
    if trace.missing_ranks:
        return f"{plural(len(trace.missing_ranks), 'rank')} left no files, and may have stages"
    for members in pipelines:
        wanted, held = set[int](), list[int]()
        for rank in members:
            described = facts.get(rank, {})
            held += own_stages(described)
            if isinstance(described.get("stages"), int):
                wanted.add(described["stages"])
        for count in wanted:
            if len(held) != count or sorted(held) != [*range(count)]:
                return f"{len(set(held))} of {count} stages were recorded"
    return ""


def _compute_ns(basis: PhaseBasis, rank: int) -> float:
    """Return the time that a rank computes for its stages, without waits inside."""
    means = basis.frame.means_of(rank, basis.used)
    return means.get(Phase.FORWARD.value, 0.0) + means.get(Phase.BACKWARD.value, 0.0)
