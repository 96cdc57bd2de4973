"""A run while it is written: its current speed, its latest steps, and signs of a hang."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.views.pictures import StepPoint, step_points
from profkit.frame.columns import rows_of_steps
from profkit.frame.device_clock import has_device_times
from profkit.frame.device_times import HOST, PhaseClock, ranks_on_device, rows_of_ranks
from profkit.frame.estimate import Estimate, Ints, estimate_ratios
from profkit.frame.phases import StepTimes, step_times
from profkit.frame.rank_sums import untimed_work
from profkit.frame.selection import Selection
from profkit.trace.sharing import say_world
from profkit.trace.tail import Latest
from profkit.vocab import RunState

RECENT_STEPS = 50
SHOWN_STEPS = 400
STALLED_AFTER = 10.0
"""A run may hang if nothing was written for this many of its steps."""

LEAST_STALL_NS = 10_000_000_000
"""A run is not called stalled within this time, however short its steps are."""


@dataclass(frozen=True)
class LivePart:
    """A part of the latest steps, as the mean over ranks and steps."""

    name: str
    step_ns: float
    share: float


@dataclass(frozen=True)
class RankPlace:
    """The newest step of a rank."""

    rank: int
    step: int


@dataclass(frozen=True)
class LiveView:
    """The latest steps of a run. Null is not known yet."""

    name: str
    workload: str
    framework: str
    state: RunState
    why: str
    world_size: int
    ranks_followed: int
    ranks_in_all: int
    newest_step: int | None
    age_ns: int | None
    """The time since the last known step ended."""
    recent_steps: int
    throughput: Estimate
    """Samples per second over the latest steps, of the ranks that are followed."""
    step_ns: Estimate
    parts: tuple[LivePart, ...]
    parts_steps: int
    """Those of the latest steps that the parts are about: their phases were timed and are known."""
    clock: PhaseClock
    loss: float | None
    places: tuple[RankPlace, ...]
    points: tuple[StepPoint, ...]
    world: str = ""
    """The number of ranks, with the dimensions along which the job is parallel."""
    standstill: str = ""
    """The reason for which the job stands still, as `profkit why` says it."""

    @property
    def stalled(self) -> bool:
        """True if a run that has not ended wrote nothing for much longer than a step takes."""
        if self.state is not RunState.RUNNING or self.age_ns is None:
            return False
        usual = self.step_ns.value if math.isfinite(self.step_ns.value) else 0.0
        return self.age_ns > max(LEAST_STALL_NS, STALLED_AFTER * usual)


def build_live_view(name: str, latest: Latest, now_ns: int) -> LiveView:
    """Return the latest steps that all followed ranks have done, at a time of day."""
    steps, manifest = latest.steps, latest.manifest
    numbers, counts = np.unique(steps["step"].to_numpy(), return_counts=True)
    done = numbers[counts >= len(pc.unique(steps["rank"]))]
    recent = done[-RECENT_STEPS:]
    throughput, step_ns = _speed(step_times(steps, latest.spans.slice(0, 0), recent))
    parts, parts_steps, clock = _parts(latest, recent)
    newest = latest.newest_ns
    by_rank = steps.group_by("rank").aggregate([("step", "max")]).sort_by("rank")
    losses = steps.filter(steps["loss"].is_valid()).sort_by("step")["loss"]
    return LiveView(
        name=name,
        workload=manifest.workload,
        framework=manifest.framework,
        state=manifest.state,
        why=manifest.why,
        world_size=manifest.world_size,
        world=say_world(manifest.world_size, manifest.config),
        ranks_followed=len(latest.ranks),
        ranks_in_all=latest.ranks_in_all,
        newest_step=int(done[-1]) if len(done) else None,
        age_ns=None if newest is None else now_ns - newest,
        recent_steps=len(recent),
        throughput=throughput,
        step_ns=step_ns,
        parts=parts,
        parts_steps=parts_steps,
        clock=clock,
        loss=float(losses[-1].as_py()) if len(losses) else None,
        places=tuple(map(RankPlace, by_rank["rank"].to_pylist(), by_rank["step_max"].to_pylist())),
        points=step_points(rows_of_steps(steps, done[-SHOWN_STEPS:]), Selection(done, {})),
    )


def _parts(latest: Latest, recent: Ints) -> tuple[tuple[LivePart, ...], int, PhaseClock]:
    """Return the parts of the latest steps, the number of these steps, and the clock.

    Control steps have no phases. A device lags behind, so the phases of the newest steps may be
    missing; rows come in order, so a step is whole when a later one has begun, or the run ended.
    """
    steps, spans = latest.steps, latest.spans
    off = steps.filter(pc.invert(steps["instrumented"]))["step"].to_numpy()
    timed = has_device_times(spans)
    used = recent[~np.isin(recent, off)]
    clock, imported = PhaseClock.HOST, "imported_from" in latest.manifest.config
    if not imported and any(each.device not in ("", HOST) for each in latest.ranks.values()):
        clock = PhaseClock.LAUNCH
    if timed.any():
        clock = PhaseClock.DEVICE
        missing = untimed_work(spans, timed)
        used = used[~np.isin(used, spans["step"].filter(pa.array(missing)).to_numpy())]
        ranks = ranks_on_device(spans, recent)
        steps, spans = rows_of_ranks(steps, ranks), rows_of_ranks(spans, ranks)
    by_rank = spans.group_by("rank").aggregate([("step", "min"), ("step", "max")])
    first, last = pc.max(by_rank["step_min"]).as_py(), pc.min(by_rank["step_max"]).as_py()
    if first is not None and first > pc.min(steps["step"]).as_py():
        used = used[used > first]  # older rows were released
    lags = clock is not PhaseClock.HOST and latest.manifest.state is RunState.RUNNING
    if lags and last is not None:
        used = used[used < last]
    times = step_times(steps, spans, used)
    wall_ns = times.wall_ns.sum()
    parts = []
    if wall_ns:
        for part, ns in zip(times.names, times.parts, strict=True):
            parts.append(LivePart(part, float(ns.mean()), float(ns.sum() / wall_ns)))
    return tuple(parts), len(used), clock


def _speed(times: StepTimes) -> tuple[Estimate, Estimate]:
    if not len(times.wall_ns):
        return Estimate(math.nan), Estimate(math.nan)
    above = np.stack([times.samples, times.wall_ns])
    below = np.stack([times.wall_ns / 1e9, np.ones(len(times.wall_ns))])
    throughput, step_ns = estimate_ratios(above, below)
    return throughput if times.samples.any() else Estimate(math.nan), step_ns
