"""The plan of a healthy job, drawn from a number: no two jobs are alike."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

EVALUATION, CHECKPOINT, COMPILE = "evaluation", "checkpoint", "compile"
SHARE_OF_LIMIT = 0.6
"""A batch or a step takes at most this part of the limit: longer ones would stand still."""

LONGEST_S = 25.0
"""No part of one rank takes longer: Paddle's gloo gives up after 30 s, and the job fails."""

TIMES = 6
"""Each kind of part comes so often in a job: most of its time it should train, not start."""

BUSY = (0.01, 0.02, 0.1)
"""Processors must be free for several jobs at once: one that gets none does stand still."""


@dataclass(frozen=True)
class Part:
    """A part of a job that takes long: `seconds` of each rank, 0 for a rank without it."""

    kind: str
    step: int
    seconds: tuple[float, float]
    has_barrier: bool
    """True if the ranks meet after it; else the next step's exchange is where they wait."""


@dataclass(frozen=True)
class Plan:
    """The lengths of a job of two ranks."""

    step_s: float
    slower: float
    """Rank 1 takes so many times as long for a step."""
    accumulation: int
    workers: int
    slow_batch_s: float
    slow_every: int
    steps: int
    parts: tuple[Part, ...]
    busy: float
    """The part of a step and of an evaluation in which a processor is used."""
    before: tuple[float, float]
    """So long does each rank work before its first step, and after its last one."""
    after: tuple[float, float]
    slow_after: Mapping[int, tuple[float, float]]
    """By the step of a part: so long does each rank wait for the batch that follows the part."""

    @classmethod
    def draw(cls, seed: int, framework: str, limit_s: float) -> Plan:
        drawn = random.Random(f"{seed} {framework}")  # nothing is secret here
        step_s = drawn.choice((0.005, 0.02, 0.06))
        slower, accumulation = drawn.choice((1.0, 1.5, 3.0)), drawn.choice((1, 1, 2, 4))
        kinds = [EVALUATION, EVALUATION, CHECKPOINT, CHECKPOINT]
        if framework == "torch":
            kinds.append(COMPILE)
        kinds *= TIMES
        drawn.shuffle(kinds)
        parts, step = [], 0
        for kind in kinds:
            step += drawn.randint(15, 60)
            long_s = min(limit_s * drawn.uniform(0.3, 4.0), LONGEST_S)
            seconds = drawn.choice(
                ((long_s, 0.0), (long_s, long_s), (long_s, long_s / 3), (long_s / 5, long_s))
            )
            parts.append(Part(kind, step, seconds, drawn.random() < 0.6))
        workers = drawn.choice((0, 0, 1, 2))
        slow_batch_s = limit_s * drawn.uniform(0.1, SHARE_OF_LIMIT)
        slow_every = drawn.randint(20, 80)
        steps = step + drawn.randint(20, 60)
        busy = drawn.choice(BUSY)
        sides = ((0.0, 0.0), (long_s, 0.0), (long_s, long_s))
        before, after = drawn.choice(sides), drawn.choice(sides)
        slow_after = {}
        for part in parts:
            wait_s = limit_s * drawn.uniform(0.1, SHARE_OF_LIMIT)
            waits = drawn.choice(((wait_s, 0.0), (0.0, wait_s), (wait_s, wait_s), (0.0, 0.0)))
            batches = range((part.step + 1) * accumulation, (part.step + 2) * accumulation)
            if not any(batch % slow_every == 0 for batch in batches):  # two would be too long
                slow_after[part.step] = waits
        return cls(
            step_s,
            slower,
            accumulation,
            workers,
            slow_batch_s,
            slow_every,
            steps,
            tuple(parts),
            busy,
            before,
            after,
            slow_after,
        )

    def take_step(self, rank: int) -> None:
        """Spend the time of one batch, part of it busy."""
        seconds = self.step_s * (self.slower if rank else 1.0)
        until = time.monotonic() + seconds * self.busy
        while time.monotonic() < until:
            sum(range(100))
        time.sleep(seconds * (1 - self.busy))

    def evaluate(self, score: Callable[[], object], seconds: float) -> None:
        """Score again and again, until the time is over."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            score()
            pause_s = (time.monotonic() - now) * (1 / self.busy - 1)
            time.sleep(max(0.0, min(pause_s, until - time.monotonic())))

    def read_sample(self, index: int) -> None:
        """Spend the time of a sample that is slow to read, now and then."""
        if index and index % self.slow_every == 0:
            time.sleep(self.slow_batch_s)

    def live(
        self,
        step: int,
        rank: int,
        acts: Mapping[str, Callable[[float], object]],
        meet: Callable[[], object],
    ) -> None:
        """Do what takes long after this step."""
        for part in self.parts:
            if part.step == step:
                if part.seconds[rank]:
                    acts[part.kind](part.seconds[rank])
                if part.has_barrier:
                    meet()
        time.sleep(self.slow_after.get(step, (0.0, 0.0))[rank])


def own_plan(framework: str, words: list[str]) -> tuple[Plan, int, str]:
    """Return the plan, the rank and the folder of a job, from its arguments."""
    seed, limit_s, folder = words
    return Plan.draw(int(seed), framework, float(limit_s)), int(os.environ["RANK"]), folder


@dataclass
class SlowToSave:
    """Takes long to be pickled."""

    seconds: float

    def __reduce__(self) -> Any:
        time.sleep(self.seconds)
        return dict, ()
