"""Makes phases and steps of what a framework's hooks report, in any loop that trains.

Hooks report that a batch is waited for, that a model is called, that gradients are computed, and
that an optimizer steps. From that alone follow

- **steps**: a step ends when the next batch is waited for after an optimizer has stepped, so that
  gradient accumulation, several forwards and several optimizers belong to one step; without a
  loader, it ends when a model is called after every known optimizer has stepped;
- **evaluation**: batches and forwards without gradients, with no training before the next batch,
  are `other`. Batches that are waited for in a row, with no forward in between, are kept or
  dropped together, because loops fetch ahead and take from several loaders.

A loop, or a callback of its trainer, may also report its steps, and parts that are no training.

Only the thread that trains is followed (`threads.py`). `states.py` holds the states and their
transitions, `steps.py` runs them, and `boundaries.py` replays what was buffered.
"""

from __future__ import annotations

import threading

from profkit.instrument.rows import Followed
from profkit.instrument.tracking.hook_reports import HookReports
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.states import OPEN_MODES, LoopEvent, Progress, StepMode
from profkit.vocab import Phase

_OTHER = Phase.OTHER.value
_TRAINING = Progress.TRAINING


class Tracker(HookReports):
    """Follows one training loop. Frameworks call it; it never raises and never waits."""

    @property
    def loss(self) -> float | None:
        """The loss of the step that is open."""
        self.catch_up()
        return self._steps.losses.loss

    @loss.setter
    def loss(self, loss: float | None) -> None:
        self.catch_up()
        self._steps.losses.loss = loss

    def say_samples(self, samples_per_step: int | None) -> None:
        """Count so many samples in each step, whatever the loaders say; `None` counts them."""
        self._steps.samples_per_step = samples_per_step

    @property
    def thread(self) -> int | None:
        """The thread that is followed. Any thread may ask for it."""
        return self._threads.thread

    @property
    def standing(self) -> tuple[str, str]:
        """The open phase and the name of its region, for a thread that looks from outside.

        Reports that are buffered have not changed them yet.
        """
        for span in reversed(self._regions.opened.copy()):
            return span.phase, getattr(span, "name", "")
        return "", ""

    @property
    def loaders_over(self) -> bool:
        """True between two epochs and after the last one. Any thread may ask for it."""
        return self._steps.loaders.are_over

    @property
    def inside(self) -> str:
        """The phase that is open now, or nothing."""
        self.catch_up()
        return self._state.inside

    @property
    def waiting_samples(self) -> int:
        """Number of samples that the loop has fetched and may or may not train on."""
        self.catch_up()
        return sum(self._pending.batches)

    @property
    def stepped(self) -> bool:
        """True if an optimizer has stepped since the last step ended."""
        self.catch_up()
        return bool(self._steps.stepped)

    def trains_elsewhere(self) -> bool:
        """Return true if another thread than the calling one trains."""
        threads = self._threads
        return threads.decided and threading.get_ident() != threads.thread

    def begin_program(self, framework: str) -> bool:
        """Begin a whole step that runs as one program; true if that is a step of its own."""
        self.catch_up()
        self._decide()
        if not self._follows():
            return False
        self.framework = framework
        if not self._has_trained:
            self._note_training()
        if self._state.mode in OPEN_MODES:
            return False
        self.begin_explicit_step()
        return True

    def end_program(self, samples: int, *, failed: bool = False) -> None:
        """End a step that ran as one program; 0 samples if their number is unknown."""
        self.catch_up()
        if failed:
            self._steps.change_mode(LoopEvent.STEP_CLOSED)
        else:
            self.end_explicit_step(samples or None)

    def begin_explicit_step(self) -> None:
        """Begin a step of a loop that delimits its steps itself from here on."""
        self.catch_up()
        self._decide()
        self._steps.change_mode(LoopEvent.STEP_BEGUN)
        if self._state.progress is not _TRAINING:
            self._steps.fire(LoopEvent.TRAINING)

    def end_explicit_step(
        self, sample_count: int | None = None, *, batches: int | None = None
    ) -> None:
        """End a step that the loop has begun.

        It has trained on so many samples, or on so many of the fetched batches, or on all of them.
        """
        self.catch_up()
        steps = self._steps
        if self._state.mode in OPEN_MODES:
            steps.change_mode(LoopEvent.STEP_CLOSED)
            steps.last_end_ns = self._clock()
            steps.end_step(steps.last_end_ns, sample_count, batches)

    def mark_step(self) -> None:
        """Mark a step, once, before or after it trains.

        It ends where the next batch is waited for, or here in a loop without a loader.
        """
        self.catch_up()
        state, steps = self._state, self._steps
        if state.mode in OPEN_MODES or not self._threads.accepts():
            return
        steps.fire(LoopEvent.ACTIVITY)
        is_over = state.mode is StepMode.MARKED or not state.batch_seen
        if is_over and state.progress is _TRAINING:
            steps.end_step()
        steps.change_mode(LoopEvent.STEP_MARKED)

    def begin_aside(self, name: str) -> Followed | None:
        """Begin a part that is no training, as an evaluation; reports inside belong to it."""
        return self._begin_other(LoopEvent.ASIDE, name)

    def begin_evaluation(self) -> Followed | None:
        """Begin a call that only evaluates; the loop may still train on the batch that waits."""
        return self._begin_other(LoopEvent.ACTIVITY, EVALUATION)

    def _begin_other(self, event: LoopEvent, name: str) -> Followed | None:
        self.catch_up()
        if not self._follows():
            return None
        self._steps.fire(event)
        self._state.model_called = True
        return self._regions.open(_OTHER, name)

    def note_epoch(self, epoch: int) -> None:
        """Note the epoch of the open step, if the loop knows better than its loaders."""
        self.catch_up()
        self._state.starts_epoch = False
        self._steps.epoch = epoch

    def start_over(self) -> None:
        """Begin or end a trainer; time between two of them belongs to no step."""
        self.catch_up()
        self._steps.start_over()

    def replay_late(self) -> None:
        """Replay whole steps that have waited long. The writer calls it, on its own thread."""
        self._boundaries.replay_late()

    def finish(self) -> None:
        """End the job; what was trained since the last boundary is the last step."""
        self.notes.close()
        self._boundaries.replay()
        self._steps.settle()
        self._pending.release()
        self._steps.end_due_step(self._steps.last_end_ns)
