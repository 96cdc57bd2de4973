"""The training loop of all workloads: when it stops, and what it reports.

It is recorded as any other loop, by the framework's hooks, which find phases and steps. What they
cannot know it tells the tracker.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profkit.errors import ProfkitError, UnreadableError
from profkit.instrument.guard import guarded
from profkit.instrument.tracking.marks import mark_batches, mark_region
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.states import CHECKPOINT
from profkit.instrument.tracking.tracker import Tracker
from profkit.text import significant
from profkit.vocab import EventKind
from profkit.workloads.base import Outcome
from profkit.workloads.training.checkpoints import Checkpoints, Progress
from profkit.workloads.training.samples import BadSamples, as_raised
from profkit.workloads.training.target import Target

if TYPE_CHECKING:
    from profkit.workloads.training.driver import SharedDriver

Tell = Callable[[int, int, float], None]
"""Called after each step with the steps done, the planned steps and the loss."""

STEPS_PER_AGREEMENT = 10
"""Steps between the questions of all ranks to each other whether to stop."""

STEPS_OF_MEAN = 10
"""Steps whose mean loss is compared with the target: a single batch may be an easy one."""


class NotFiniteError(ProfkitError):
    """The loss is NaN or infinite."""


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
    evaluate_every: int | None = None


class Training:
    """One run of the loop, which a tracker follows if it is recorded."""

    def __init__(
        self,
        driver: SharedDriver,
        plan: Plan,
        bad: BadSamples,
        tell: Tell,
        tracker: Tracker | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._driver = driver
        self._plan = plan
        self._bad = bad
        self._tracker = tracker
        self._region = driver.region = functools.partial(mark_region, tracker)
        self._tell = tell
        self._checkpoints = checkpoints or Checkpoints()
        self._done = Progress()
        self._first_loss = math.nan
        self._losses: list[float] = []
        """Losses of the first steps, for a relative target."""
        self._recent: deque[float] = deque(maxlen=STEPS_OF_MEAN)
        self._began = time.monotonic()
        self._stopped = ""
        self._evaluated_at = -1
        self._figures: Mapping[str, float] = {}
        self._best = (-math.inf, 0)
        """The best value of the target's figure, and its step."""

    def run(self) -> Outcome:
        """Train to the end."""
        resumed = self._checkpoints.load(self._driver)
        if resumed:
            self._done = resumed
            self._losses += resumed.first_losses
            self._recent.extend(resumed.recent_losses)
            self._best = (resumed.best, resumed.best_step)
        if self._done.steps >= self._plan.steps:
            raise ProfkitError(
                f"the checkpoint is at step {self._done.steps}, and the run ends at step "
                f"{self._plan.steps}; choose more --steps"
            )
        begun_at = self._done.steps
        self._began = time.monotonic()
        if not self._driver.has_loader:
            self._mark(lambda tracker: tracker.say_samples(self._plan.batch_size))
        for epoch in itertools.count(self._done.epoch):
            self._train_epoch(epoch)
            if self._plan.evaluate and (self._has_ended() or self._plan.epoch_ends):
                self._evaluate()
            if self._has_ended():
                break
            self._done.epoch, self._done.steps_in_epoch = epoch + 1, 0
        if self._checkpoints.folder and not self._checkpoints.is_due(self._done.steps):
            self._save()
        self._note_bad_samples()
        return Outcome(
            self._done.steps - begun_at,
            self._first_loss,
            self._recent[-1],
            self._stopped,
            self._figures,
            self._remarks(begun_at),
        )

    def _has_ended(self) -> bool:
        return bool(self._stopped) or self._done.steps >= self._plan.steps

    def _train_epoch(self, epoch: int) -> None:
        """Train to the end of the epoch or of the run."""
        batches = self._driver.batches(epoch, self._done.steps_in_epoch)
        if self._tracker is not None and not self._driver.has_loader:
            batches = mark_batches(self._tracker, batches)
        try:
            for batch in batches:
                self._step(batch, epoch)
                self._after_step()
                if self._has_ended():
                    self._mark(Tracker.end_loop)
                    return
        except UnreadableError as error:
            raise as_raised(error) from None
        if self._done.steps_in_epoch == 0:
            raise ProfkitError(
                f"an epoch has no whole batch of {self._plan.batch_size} on each rank; "
                "choose a smaller --batch-size"
            )

    def _step(self, batch: Any, epoch: int) -> None:
        driver, number = self._driver, self._done.steps
        loss = driver.forward(driver.move(batch))
        driver.backward(loss)
        driver.update(number)
        value = driver.value(loss)
        self._mark(lambda tracker: tracker.note_step(value, epoch, driver.grad_scale))
        if math.isnan(self._first_loss):
            self._first_loss = value
        self._done.steps += 1
        self._done.steps_in_epoch += 1
        self._recent.append(value)
        if len(self._losses) < STEPS_OF_MEAN:
            self._losses.append(value)
        with self._region("progress"):
            self._tell(number + 1, self._plan.steps, value)
            self._note_bad_samples()
        if self._plan.stop_at_nan and not math.isfinite(value):
            raise NotFiniteError(
                f"the loss is {value} at step {number} (learning rate {driver.lr:.4g}, "
                f"batch {self._plan.batch_size} a rank); choose a smaller --lr, "
                "or go on with --nan continue"
            )

    def _after_step(self) -> None:
        """Ask if the run is over, evaluate and save, all ranks at the same steps."""
        plan, done = self._plan, self._done.steps
        asks = done % STEPS_PER_AGREEMENT == 0 or done >= plan.steps
        if (plan.until or plan.max_time) and asks:
            with self._region("whether to stop"):
                took, recent = self._elapsed_s(), self._recent
                late = plan.max_time is not None and took >= plan.max_time
                late, mean = self._driver.agree(late, sum(recent) / len(recent))
                first = sum(self._losses) / len(self._losses)
                if plan.until and plan.until.loss_reached(mean, first):
                    self._stopped = (
                        f"{plan.until.text} reached at step {done - 1} after {took:.1f} s "
                        f"(mean of {len(recent)} steps: {significant(mean, 4)})"
                    )
                elif late:
                    self._stopped = f"--max-time reached after {took:.1f} s"
        if plan.evaluate_every and done % plan.evaluate_every == 0:
            self._evaluate()
        if self._checkpoints.is_due(done):
            self._save()

    def _elapsed_s(self) -> float:
        """Return the seconds of training so far, with those before the checkpoint."""
        return self._done.elapsed_s + time.monotonic() - self._began

    def _evaluate(self) -> None:
        """Evaluate the model, unless this step was evaluated before, and check the target."""
        step = self._done.steps
        if step == self._evaluated_at:
            return
        self._evaluated_at = step
        began = time.monotonic()
        with self._region(EVALUATION):
            self._figures = self._driver.evaluate()
        self._done.evaluation_s += time.monotonic() - began
        for name, value in self._figures.items():
            self._note(f"evaluation:{name}", value)
        target = self._plan.until
        if target is None or target.figure not in self._figures:
            return
        value = self._figures[target.figure]
        self._best = max(self._best, (value, step))
        if value > target.value and not self._stopped:
            took, evaluating = self._elapsed_s(), self._done.evaluation_s
            self._note("time_to_target_s", took)
            self._stopped = (
                f"{target.text} reached at step {step - 1} after {took:.1f} s, "
                f"of which {evaluating:.1f} s evaluation ({target.figure} {value:.4g})"
            )

    def _save(self) -> None:
        """Write a checkpoint from which the run continues as if it had not ended."""
        now = time.monotonic()
        self._done.elapsed_s += now - self._began
        self._began = now
        self._done.first_losses = list(self._losses)
        self._done.recent_losses = list(self._recent)
        self._done.best, self._done.best_step = self._best
        with self._region(CHECKPOINT):
            self._checkpoints.save(self._driver, self._done)

    def _remarks(self, begun_at: int) -> tuple[str, ...]:
        """Return what else is to be said of the run's end."""
        remarks = []
        if begun_at:
            remarks.append(f"continued from a checkpoint at step {begun_at}")
        target = self._plan.until
        if target and target.text not in self._stopped:
            remark = f"{target.text} not reached in {self._done.steps} steps"
            if target.figure != "loss" and self._best[1]:
                value, step = self._best
                remark += f"; the best was {target.figure} {value:.4g} at step {step - 1}"
            remarks.append(remark)
        return tuple(remarks)

    def _note_bad_samples(self) -> None:
        for sample in self._bad.news():
            print(f"bad sample: {sample.path}: {sample.why}", file=sys.stderr)
            if self._tracker is not None:
                event = EventKind.BAD_SAMPLE
                self._tracker.recorder.note_event(event, sample.path, sample.why)

    def _note(self, metric: str, value: float) -> None:
        """Record a figure of the loop's own."""
        if self._tracker is not None:
            self._tracker.recorder.note(metric, value)

    def _mark(self, mark: Callable[[Tracker], object]) -> None:
        """Tell the tracker what hooks cannot know, if the loop is recorded."""
        if self._tracker is not None:
            guarded("marks of the loop", mark, None)(self._tracker)
