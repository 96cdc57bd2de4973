"""One change of a run's step time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from profkit.frame.estimate import Estimate


class MachineChange(NamedTuple):
    """Cores that other processes used, and waits for a core, before and after a change."""

    others_before: float
    others_after: float
    waited_before: float
    """Seconds per second that the job's threads were ready and had no core."""
    waited_after: float


class LateSince(NamedTuple):
    """A rank whose own work became longer than that of the others, most of it in one phase."""

    rank: int
    phase: str
    later_ns: float
    """Per step, more than the others' median."""


class ClockChange(NamedTuple):
    """A device whose clock changed with the step time, and what throttled it."""

    device: str
    before_mhz: float
    after_mhz: float
    reasons: tuple[str, ...]


class ChangeKind(str, Enum):
    """Kinds of changes of the step time."""

    STEP = "step"
    DRIFT = "drift"
    BURST = "burst"
    PERIODIC = "periodic"


@dataclass(frozen=True)
class RunChange:
    """One change of the step time. Times are per step, as means over the ranks."""

    kind: ChangeKind
    first_step: int
    last_step: int | None
    """The last step with the change; null if it lasts until the end of the run."""
    unix_ns: int | None
    """The time of day at which the first step began."""
    before_ns: Estimate
    after_ns: Estimate
    change: Estimate
    """By what share a step takes longer than before."""
    phases: tuple[tuple[str, float], ...]
    """The phases that changed most, with the change per step in ns."""
    every: int | None = None
    """The number of steps between two slow ones, of a periodic change."""
    samples: tuple[float, float] | None = None
    """Samples per step before and after, if they differ."""
    machine: MachineChange | None = None
    """The load of the machine, if it changed with the step time."""
    late: LateSince | None = None
    """The rank that the others wait for since then."""
    phases_known: bool = True
    """False if the spans of too few steps are known, as in a job that runs and has many."""
    clock: ClockChange | None = None
    """The device whose clock changed most."""
    before_steps: tuple[int, int] = (0, 0)
    """The first and the last of the steps before, which `before_ns` is the mean of."""
    after_steps: tuple[int, int] = (0, 0)
    """The same of `after_ns`: of a drift, steps at its end."""
