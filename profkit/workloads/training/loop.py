"""The training loop of all workloads: its phases, when it stops, and what it reports."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.instrument.loop_recorder import LoopRecorder
from profkit.instrument.tracking.pending import EVALUATION
from profkit.text import significant
from profkit.vocab import BAD_SAMPLE, SKIPPED_STEP, Phase
from profkit.workloads.base import Outcome
from profkit.workloads.training.samples import BadSamples, as_raised

Tell = Callable[[int, int, float], None]
"""Called after each step with the steps done, the planned steps and the loss."""

STEPS_PER_AGREEMENT = 10
"""Steps between the questions of all ranks to each other whether to stop."""

STEPS_OF_MEAN = 10
"""Steps whose mean loss is compared with the target: a single batch may be an easy one."""


class NotFiniteError(ProfkitError):
    """The loss is NaN or infinite."""


class Driver(Protocol):
    """The operations of a training step in one framework."""

    def batches(self, epoch: int) -> Iterable[Any]:
        """Start a new pass over the training set."""

    def count(self, batch: Any) -> int:
        """Count the samples of a batch."""

    def move(self, batch: Any) -> Any:
        """Copy the batch to the device."""

    def forward(self, batch: Any) -> Any:
        """Compute the loss, a scalar of the framework."""

    def backward(self, loss: Any) -> None: ...

    def update(self, step: int) -> bool:
        """Step the optimizer and clear the gradients; false if the scaler skipped the step."""

    def value(self, loss: Any) -> float:
        """Wait for the device, and return the loss as a number."""

    @property
    def lr(self) -> float: ...

    @property
    def grad_scale(self) -> float | None: ...

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        """Return if any rank wants to stop, and the mean of the ranks' losses."""

    def evaluate(self) -> Mapping[str, float]:
        """Compute the quality figures on the validation set."""


@dataclass(frozen=True)
class Target:
    """`loss<0.05`; or `loss<0.3x`, a share of the mean loss of the first steps."""

    text: str
    value: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Target | None:
        if not text:
            return None
        match = re.fullmatch(r"\s*loss\s*<\s*(\d*\.?\d+(?:[eE][-+]?\d+)?)(x?)\s*", text)
        if not match:
            raise UsageError(
                f"--until '{text}' is not understood; write loss<0.05, "
                "or loss<0.3x for a share of the first steps' loss"
            )
        return cls(text, float(match[1]), bool(match[2]))

    def reached(self, mean: float, first: float) -> bool:
        return mean < self.value * (first if self.relative else 1.0)


@dataclass(frozen=True)
class Plan:
    """The end of a run, and its options on the way."""

    steps: int
    batch_size: int = 1
    until: Target | None = None
    max_time: float | None = None
    stop_at_nan: bool = True
    evaluate: bool = False
    epoch_ends: bool = False


class Training:
    """One run of the loop."""

    def __init__(
        self, driver: Driver, plan: Plan, bad: BadSamples, recorder: LoopRecorder, tell: Tell
    ) -> None:
        self._driver = driver
        self._plan = plan
        self._bad = bad
        self._recorder = recorder
        self._tell = tell
        self._losses: list[float] = []
        self._recent: deque[float] = deque(maxlen=STEPS_OF_MEAN)
        self._began = time.monotonic()
        self._stopped = ""
        self._figures: Mapping[str, float] = {}

    def run(self) -> Outcome:
        """Train to the end."""
        self._began = time.monotonic()
        self._recorder.begin()
        for epoch in itertools.count():
            self._train_epoch(epoch)
            ended = bool(self._stopped) or len(self._losses) >= self._plan.steps
            if self._plan.evaluate and (ended or self._plan.epoch_ends):
                with self._recorder.phase(Phase.OTHER, EVALUATION):
                    self._figures = self._driver.evaluate()
                for name, value in self._figures.items():
                    self._recorder.note(f"evaluation:{name}", value)
            if ended:
                break
        self._note_bad_samples()
        return Outcome(
            len(self._losses), self._losses[0], self._losses[-1], self._stopped, self._figures
        )

    def _train_epoch(self, epoch: int) -> None:
        before = len(self._losses)
        try:
            for batch in self._recorder.batches(self._driver.batches(epoch)):
                self._step(batch, epoch)
                if self._ends():
                    return
        except UnreadableError as error:
            raise as_raised(error) from None
        if len(self._losses) == before:
            raise ProfkitError(
                f"an epoch has no whole batch of {self._plan.batch_size} on each rank; "
                "choose a smaller --batch-size"
            )

    def _step(self, batch: Any, epoch: int) -> None:
        driver, recorder, number = self._driver, self._recorder, len(self._losses)
        with recorder.step(driver.count(batch), epoch=epoch) as step:
            with recorder.phase(Phase.H2D):
                batch = driver.move(batch)
            with recorder.phase(Phase.FORWARD):
                loss = driver.forward(batch)
            with recorder.phase(Phase.BACKWARD):
                driver.backward(loss)
                recorder.end_backward()
            with recorder.phase(Phase.OPTIMIZER) as region:
                if not driver.update(number):
                    region.rename(SKIPPED_STEP)
                    recorder.note("skipped_steps", 1.0)
            step.loss = value = driver.value(loss)
            step.grad_scale = driver.grad_scale
        self._losses.append(value)
        self._recent.append(value)
        with recorder.phase(Phase.OTHER, "progress"):
            self._tell(number + 1, self._plan.steps, value)
            self._note_bad_samples()
        if self._plan.stop_at_nan and not math.isfinite(value):
            raise NotFiniteError(
                f"the loss is {value} at step {number} (learning rate {driver.lr:.4g}, "
                f"batch {self._plan.batch_size} a rank); choose a smaller --lr, "
                "or go on with --nan continue"
            )

    def _ends(self) -> bool:
        """Return if the run is over; all ranks agree on it at the same step."""
        done = len(self._losses)
        plan = self._plan
        asks = done % STEPS_PER_AGREEMENT == 0 or done >= plan.steps
        if (plan.until or plan.max_time) and asks:
            with self._recorder.phase(Phase.OTHER, "whether to stop"):
                took, recent = time.monotonic() - self._began, self._recent
                late = plan.max_time is not None and took >= plan.max_time
                late, mean = self._driver.agree(late, sum(recent) / len(recent))
                first = sum(self._losses[:STEPS_OF_MEAN]) / min(done, STEPS_OF_MEAN)
                if plan.until and plan.until.reached(mean, first):
                    self._stopped = (
                        f"{plan.until.text} reached at step {done - 1} after {took:.1f} s "
                        f"(mean of {len(recent)} steps: {significant(mean, 4)})"
                    )
                elif late:
                    self._stopped = f"--max-time reached after {took:.1f} s"
        return bool(self._stopped) or done >= plan.steps

    def _note_bad_samples(self) -> None:
        for sample in self._bad.news():
            print(f"bad sample: {sample.path}: {sample.why}", file=sys.stderr)
            self._recorder.note(f"{BAD_SAMPLE}{sample.path}: {sample.why}", 1.0)
