"""A question about a changed job, and its answer: an interval, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from profkit.explain.titles import title_of
from profkit.frame.estimate import Estimate
from profkit.notebook import ShownInNotebook
from profkit.text import plural, safe_text, significant

KINDS = WITHOUT, FASTER, LINK, WORKERS, RANKS = "without", "faster", "link", "workers", "ranks"

WITH_BASE = frozenset({WITHOUT, RANKS})
"""The questions that a second run helps to answer."""


@dataclass(frozen=True)
class Question:
    """A change of a job that is asked about."""

    kind: str
    value: float = 0.0
    cause: str = ""
    """The cause that is removed, or the phase that is faster."""

    @property
    def words(self) -> str:
        number = significant(self.value)
        return {
            WITHOUT: f"without {title_of(self.cause)}",
            FASTER: f"{self.cause} {number} times as fast",
            LINK: f"links {number} times as fast",
            WORKERS: f"{plural(int(self.value), 'loader worker')} per rank",
            RANKS: plural(int(self.value), "rank"),
        }[self.kind]


@dataclass(frozen=True)
class RankPoint:
    """A job on another number of ranks, in ns per step."""

    ranks: int
    step_ns: Estimate
    efficiency: float
    """Throughput per rank, as a share of the recorded one."""
    tail_ns: float
    """What waiting for the slowest rank adds to the mean rank's work."""
    links_ns: float | None
    """The exposed exchange; null if nothing says what it takes."""


@dataclass(frozen=True)
class Prediction(ShownInNotebook):
    """An answer. Without `step_ns`, nothing can be said."""

    question: Question
    path: Path
    """The folder of the run."""
    now_ns: Estimate
    step_ns: Estimate | None
    samples: float
    """Samples of all ranks per step of the changed job; 0 if that is not known."""
    now_samples: float
    why: str = ""
    """Why the answer is inconclusive; empty if it is not."""
    next: str = ""
    rests_on: tuple[str, ...] = ()
    leaves_out: tuple[str, ...] = ()
    saved_ns: Estimate | None = None
    """What the change saves of the recorded steps; null if it is not about the same steps.

    Its interval lacks the noise between runs, which both steps would share.
    """
    replay_error: float | None = None
    """The replay of the unchanged run minus its measured time, as a share."""
    points: tuple[RankPoint, ...] = ()
    knee: str = ""

    @property
    def run(self) -> str:
        return safe_text(self.path.resolve().name)

    @property
    def conclusive(self) -> bool:
        return not self.why and self.step_ns is not None and self.step_ns.judged

    @property
    def is_possible(self) -> bool:
        """True if no step of the answer is below zero, and each is inside of its interval."""
        for step in (self.step_ns, self.step_on_same_machine):
            if step is None:
                continue
            low = 0.0 if step.low is None else step.low
            high = math.inf if step.high is None else step.high
            if not 0 <= low <= step.value <= high:
                return False
        return True

    @property
    def speed_up(self) -> Estimate | None:
        """Throughput compared with the recorded run; time per step if samples are not known."""
        step = self.step_on_same_machine
        if step is None or not step.value > 0:
            return None
        factor = 1.0
        if self.samples and self.now_samples:
            factor = self.samples / self.now_samples
        return _divided(factor * self.now_ns.value, step)

    @property
    def step_on_same_machine(self) -> Estimate | None:
        """The step of the changed job in the circumstances of the recorded run."""
        saved, now = self.saved_ns, self.now_ns.value
        if saved is None:
            return self.step_ns
        if saved.low is None or saved.high is None:
            return Estimate(now - saved.value)
        return Estimate(now - saved.value, max(0.0, now - saved.high), now - saved.low)

    def throughput(self, *, now: bool = False) -> Estimate | None:
        """Return samples per second, or `None` if the run does not say what it trains on."""
        samples, step = self.samples, self.step_ns
        if now:
            samples, step = self.now_samples, self.now_ns
        if not samples or step is None or not step.value > 0:
            return None
        return _divided(1e9 * samples, step)


def _divided(above: float, step: Estimate) -> Estimate:
    """Return a figure divided by a positive time; an end of it that is zero leaves none."""
    low = high = None
    if step.high:
        low = above / step.high
    if step.low:
        high = above / step.low
    return Estimate(above / step.value, low, high, step.level)
