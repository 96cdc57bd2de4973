"""A run while it is written: how fast it is now, where its latest steps go, and whether it still moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Estimate, Ints, estimate_ratios
from profkit.analysis.phases import StepTimes, step_times
from profkit.analysis.selection import Selection
from profkit.analysis.views.pictures import StepPoint, step_points
from profkit.trace.tail import Latest
from profkit.vocab import RunState

RECENT_STEPS = 50
SHOWN_STEPS = 400
STALLED_AFTER = 10.0
"""A run that has not ended, and of which there is no news for so many of its steps, and for longer than a few seconds, may hang."""

LEAST_STALL_NS = 10_000_000_000


@dataclass(frozen=True)
class LivePart:
    """A part of the latest steps, as the mean over ranks and steps."""

    name: str
    step_ns: float
    share: float


@dataclass(frozen=True)
class RankPlace:
    """How far a rank has come."""

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
    """How long ago the last step that is known ended."""
    recent_steps: int
    throughput: Estimate
    """Samples a second over the latest steps, of the ranks that are followed."""
    step_ns: Estimate
    parts: tuple[LivePart, ...]
    loss: float | None
    places: tuple[RankPlace, ...]
    points: tuple[StepPoint, ...]

    @property
    def stalled(self) -> bool:
        """Whether there is no news of a run that has not ended, for far longer than it takes a step."""
        usual = self.step_ns.value if math.isfinite(self.step_ns.value) else 0.0
        return (
            self.state is RunState.RUNNING
            and self.age_ns is not None
            and self.age_ns > max(LEAST_STALL_NS, STALLED_AFTER * usual)
        )


def build_live_view(name: str, latest: Latest, now_ns: int) -> LiveView:
    """The latest steps that all followed ranks have done, at a time of day."""
    steps, manifest = latest.steps, latest.manifest
    done = _done_by_all(steps)
    recent = done[-RECENT_STEPS:]
    times = step_times(steps, latest.spans, recent)
    throughput, step_ns = _speed(times)
    newest = latest.newest_ns
    return LiveView(
        name=name,
        workload=manifest.workload,
        framework=manifest.framework,
        state=manifest.state,
        why=manifest.why,
        world_size=manifest.world_size,
        ranks_followed=len(latest.ranks),
        ranks_in_all=latest.ranks_in_all,
        newest_step=int(done[-1]) if len(done) else None,
        age_ns=None if newest is None else now_ns - newest,
        recent_steps=len(recent),
        throughput=throughput,
        step_ns=step_ns,
        parts=tuple(_parts(times)),
        loss=_last_loss(steps),
        places=_places(steps),
        points=step_points(
            steps.filter(pc.is_in(steps["step"], pa.array(done[-SHOWN_STEPS:], pa.int64()))),
            Selection(done, {}),
        ),
    )


def _done_by_all(steps: pa.Table) -> Ints:
    """The steps of which every rank that has any has told."""
    numbers, counts = np.unique(steps["step"].to_numpy(), return_counts=True)
    return np.asarray(numbers[counts >= len(pc.unique(steps["rank"]))])


def _speed(times: StepTimes) -> tuple[Estimate, Estimate]:
    if not len(times.wall_ns):
        return Estimate(math.nan), Estimate(math.nan)
    above = np.stack([times.samples, times.wall_ns])
    below = np.stack([times.wall_ns / 1e9, np.ones(len(times.wall_ns))])
    throughput, step_ns = estimate_ratios(above, below)
    return throughput if times.samples.any() else Estimate(math.nan), step_ns


def _parts(times: StepTimes) -> list[LivePart]:
    wall = times.wall_ns.sum()
    if not wall:
        return []
    return [
        LivePart(name, float(ns.mean()), float(ns.sum() / wall))
        for name, ns in zip(times.names, times.parts, strict=True)
    ]


def _last_loss(steps: pa.Table) -> float | None:
    told = steps.filter(steps["loss"].is_valid())
    return float(told.sort_by("step")["loss"][-1].as_py()) if told.num_rows else None


def _places(steps: pa.Table) -> tuple[RankPlace, ...]:
    newest = steps.group_by("rank").aggregate([("step", "max")]).sort_by("rank")
    return tuple(
        RankPlace(rank, step)
        for rank, step in zip(
            newest["rank"].to_pylist(), newest["step_max"].to_pylist(), strict=True
        )
    )
