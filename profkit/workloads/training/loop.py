"""The training loop of all workloads, in either framework: phases, when to stop, and what to tell."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.instrument.loop_recorder import LoopRecorder
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.states import SKIPPED
from profkit.text import significant
from profkit.vocab import Phase
from profkit.workloads.base import Outcome
from profkit.workloads.training.samples import BadSamples, as_raised

Tell = Callable[[int, int, float], None]

AGREE_EVERY = 10
"""How often ranks ask each other whether to stop, where that depends on what each has seen."""

MEAN_OF = 10
"""Steps whose mean loss is compared with the target: a single batch may be an easy one."""


class NotFiniteError(ProfkitError):
    """The loss is no number any more."""


class Driver(Protocol):
    """One framework's way to do what a training step does."""

    def batches(self, epoch: int) -> Iterable[Any]:
        """A new walk through the training set."""

    def count(self, batch: Any) -> int:
        """Samples of a batch."""

    def move(self, batch: Any) -> Any:
        """The batch on the device."""

    def forward(self, batch: Any) -> Any:
        """The loss, a scalar of the framework."""

    def backward(self, loss: Any) -> None: ...

    def update(self, step: int) -> bool:
        """Let the optimizer step, and forget the gradients; false where the scaler skipped it."""

    def value(self, loss: Any) -> float:
        """The loss as a number; waits for the device."""

    @property
    def lr(self) -> float: ...

    @property
    def grad_scale(self) -> float | None: ...

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        """Whether any rank wants to stop, and the mean of the ranks' losses."""

    def evaluate(self) -> Mapping[str, float]:
        """The figures of merit on the validation set."""


@dataclass(frozen=True)
class Target:
    """`loss<0.05`, or `loss<0.3x`: a share of what the loss was over the first steps."""

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
                f"--until '{text}' is not understood; write loss<0.05, or loss<0.3x for a share of the first steps' loss"
            )
        return cls(text, float(match[1]), bool(match[2]))

    def reached(self, mean: float, first: float) -> bool:
        return mean < self.value * (first if self.relative else 1.0)


@dataclass(frozen=True)
class Plan:
    """When a run ends, and what is done on the way."""

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
        self._recent: deque[float] = deque(maxlen=MEAN_OF)
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
                self._evaluate(epoch)
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
                f"an epoch has no whole batch of {self._plan.batch_size} on each rank; choose a smaller --batch-size"
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
                    region.rename(SKIPPED)
                    recorder.note("skipped_steps", 1.0)
            step.loss = value = driver.value(loss)
            step.grad_scale = driver.grad_scale
        self._losses.append(value)
        self._recent.append(value)
        with recorder.phase(Phase.OTHER, "progress"):
            self._tell(number + 1, self._plan.steps, value)
            self._note_bad_samples()
        self._check(number, value)

    def _check(self, number: int, loss: float) -> None:
        if self._plan.stop_at_nan and not math.isfinite(loss):
            raise NotFiniteError(
                f"the loss is {loss} at step {number} (learning rate {self._driver.lr:.4g}, batch {self._plan.batch_size} a rank); "
                f"choose a smaller --lr, or go on with --nan continue"
            )

    def _ends(self) -> bool:
        """Whether the run is over: all ranks say the same at the same step."""
        done = len(self._losses)
        plan = self._plan
        if (plan.until or plan.max_time) and (done % AGREE_EVERY == 0 or done >= plan.steps):
            with self._recorder.phase(Phase.OTHER, "whether to stop"):
                self._stopped = self._reason_to_stop(done)
        return bool(self._stopped) or done >= plan.steps

    def _reason_to_stop(self, done: int) -> str:
        plan, took = self._plan, time.monotonic() - self._began
        late, mean = self._driver.agree(
            plan.max_time is not None and took >= plan.max_time,
            sum(self._recent) / len(self._recent),
        )
        if plan.until and plan.until.reached(
            mean, sum(self._losses[:MEAN_OF]) / min(done, MEAN_OF)
        ):
            return f"{plan.until.text} reached at step {done - 1} after {took:.1f} s (mean of {len(self._recent)} steps: {significant(mean, 4)})"
        return f"--max-time reached after {took:.1f} s" if late else ""

    def _evaluate(self, epoch: int) -> None:
        with self._recorder.phase(Phase.OTHER, EVALUATION):
            self._figures = self._driver.evaluate()
        for name, value in self._figures.items():
            self._recorder.note(f"evaluation:{name}", value)

    def _note_bad_samples(self) -> None:
        for sample in self._bad.news():
            print(f"bad sample: {sample.path}: {sample.why}", file=sys.stderr)
            self._recorder.note(f"bad_sample:{sample.path}: {sample.why}", 1.0)


def repeat(batch: Any, steps: int) -> Iterator[Any]:
    """The same batch again and again: what a loop is fed where there is to be no input pipeline."""
    return itertools.repeat(batch, steps)
