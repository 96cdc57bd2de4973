"""The plan of a synthetic run, and the begin and end of its steps, phases and buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

Longer: TypeAlias = Callable[[str, "Ints"], "Ints"]
"""Returns the durations of a phase, by rank and step, as a test wants them."""

OUTSIDE = "outside"
"""The name by which time after the last phase of a step is made longer."""

BEGIN_NS = 1_000_000_000_000
"""The first step of all ranks begins at this time."""

UNCOVERED_SHARE = 0.005
"""A step ends later than its last phase by this share of its phases' time."""

BEFORE_ALLREDUCE = ("data", "h2d", "forward", "backward")
AFTER_ALLREDUCE = ("optimizer", "other")
PHASE_ORDER = (*BEFORE_ALLREDUCE, "allreduce", *AFTER_ALLREDUCE)

FIRST_STEPS_SLOWDOWN = (6.0, 3.0, 1.5)
"""A job warms up: its first forward and backward passes take this many times as long."""

EPOCH_START_SLOWDOWN = 12.0
"""The first batch of an epoch takes this many times as long, as if loader workers started."""

DRIFT_WEIGHT, NOISE_WEIGHT = 0.8, 0.6
"""The squares add up to one, so that the sum of drift and noise has a variance of one."""

DRIFT_MEMORY = 0.8 ** np.arange(24)
"""The weights of the newest random numbers in a step's drift, the newest first."""

MIN_SPREAD = 0.1
"""No jitter makes a phase shorter than this share of its mean."""

DRIFT_STREAM = 1 << 20
"""The random stream of the drift, which all ranks share. No rank has this number."""

LOSS_STREAM, KERNEL_STREAM = 100, 101
"""Random streams of one rank. Each phase has its own: its place in `PHASE_ORDER`, from 1."""


@dataclass(frozen=True)
class Plan:
    """The arguments of a synthetic run, with a mean duration for each phase of a step."""

    ranks: int
    steps: int
    kernels_per_step: int
    seed: int
    phase_ns: Mapping[str, int]
    rank_phase_ns: Mapping[int, Mapping[str, int]]
    jitter: float
    steps_per_epoch: int
    batch_size: int
    last_batch_size: int | None
    buckets: int
    device: str
    longer: Longer | None = None

    @property
    def phases(self) -> list[str]:
        """Phases that take time, in their order within a step. One rank has no all-reduce."""
        phases = [phase for phase in PHASE_ORDER if self.phase_ns.get(phase)]
        if self.ranks == 1 and "allreduce" in phases:
            phases.remove("allreduce")
        return phases

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def drift(self) -> Floats:
        """Noise of variance one in which a step resembles the steps before it."""
        noise = self.random(DRIFT_STREAM).standard_normal(self.steps)
        summed = np.convolve(noise, DRIFT_MEMORY)[: self.steps]
        drift: Floats = summed / np.sqrt((DRIFT_MEMORY**2).sum())
        return drift

    def random(self, *stream: int) -> np.random.Generator:
        """Return the generator of a random stream, which depends on nothing but the seed."""
        return np.random.default_rng([self.seed, *stream])

    def mean_ns(self, phase: str, rank: int) -> int:
        """Return the mean duration of a phase on one rank, 0 if the run has no such phase."""
        if phase not in self.phases:
            return 0
        return self.rank_phase_ns.get(rank, {}).get(phase, self.phase_ns[phase])

    def draw_durations(self, phase: str) -> Ints:
        """Draw a phase's duration by rank and step, with drift, noise and slow steps."""
        slowdown = np.ones(self.steps)
        if phase == "data" and self.steps_per_epoch:
            slowdown[:: self.steps_per_epoch] = EPOCH_START_SLOWDOWN
        if phase in {"forward", "backward"}:
            slowdown[: len(FIRST_STEPS_SLOWDOWN)] = FIRST_STEPS_SLOWDOWN[: self.steps]
        shared = DRIFT_WEIGHT * self.drift
        durations = np.empty((self.ranks, self.steps), np.int64)
        for rank in range(self.ranks):
            noise = self.random(rank, 1 + PHASE_ORDER.index(phase)).standard_normal(self.steps)
            spread = 1 + self.jitter * (shared + NOISE_WEIGHT * noise)
            durations[rank] = self.mean_ns(phase, rank) * np.maximum(MIN_SPREAD, spread) * slowdown
        return self.make_longer(phase, durations)

    def make_longer(self, phase: str, durations: Ints) -> Ints:
        return durations if self.longer is None else self.longer(phase, durations)


@dataclass(frozen=True)
class Timeline:
    """The begin and end of each step, and of each phase in it, as arrays by rank and step."""

    begin_ns: Mapping[str, Ints]
    end_ns: Mapping[str, Ints]
    step_begin_ns: Ints
    step_end_ns: Ints

    def phase_times(self, phases: Sequence[str], rank: int) -> tuple[Ints, Ints]:
        """Return the begins and the ends of one rank's phases, by step and phase."""
        begin = np.stack([self.begin_ns[phase][rank] for phase in phases], axis=1)
        end = np.stack([self.end_ns[phase][rank] for phase in phases], axis=1)
        return begin, end

    def bucket_times(self, buckets: int, rank: int) -> tuple[Ints, Ints, Ints]:
        """Return when one rank's buckets are ready, start and end, by step and bucket.

        Buckets become ready at equal distances in the backward pass. Each starts after the one
        before it, and ends on all ranks at once: the last with the all-reduce phase, any other
        before the next one is ready on all ranks.
        """
        begin = self.begin_ns["backward"][:, :, None]
        length = self.end_ns["backward"][:, :, None] - begin
        ready = begin + length * np.arange(1, buckets + 1) // buckets
        end = ready.max(axis=0)
        end[:, :-1] += np.diff(end, axis=1) * 4 // 5
        end[:, -1] = self.end_ns["allreduce"][rank]
        start = ready[rank].copy()
        start[:, 1:] = np.maximum(start[:, 1:], end[:, :-1])
        return ready[rank], start, end


def build_timeline(plan: Plan) -> Timeline:
    """Lay the phases end to end. All ranks leave a step's all-reduce at the same moment."""
    took = {}
    for phase in PHASE_ORDER:
        took[phase] = plan.draw_durations(phase)
    transfer = took["allreduce"].min(axis=0)
    lead: Ints = np.sum([took[phase] for phase in BEFORE_ALLREDUCE], axis=0)
    tail: Ints = np.sum([took[phase] for phase in AFTER_ALLREDUCE], axis=0)
    tail += (UNCOVERED_SHARE * (lead + transfer + tail)).astype(np.int64)
    tail = plan.make_longer(OUTSIDE, tail)
    # The transfer starts when the slowest rank arrives. The others wait for it in the phase.
    arrival = np.concatenate([lead[:, :1], tail[:, :-1] + lead[:, 1:]], axis=1).max(axis=0)
    allreduce_end = np.broadcast_to(BEGIN_NS + np.cumsum(arrival + transfer), lead.shape)
    step_end = allreduce_end + tail
    step_begin = np.concatenate([np.full((plan.ranks, 1), BEGIN_NS), step_end[:, :-1]], axis=1)
    begin, end = {}, {}
    now = step_begin
    for phase in PHASE_ORDER:
        begin[phase] = now
        now = allreduce_end if phase == "allreduce" else now + took[phase]
        end[phase] = now
    return Timeline(begin, end, step_begin, step_end)
