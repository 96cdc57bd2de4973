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
from collections.abc import Callable
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.instrument.batches import count_batch
from profkit.instrument.identity import Seen
from profkit.instrument.models import TrainedModels, leave_models
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Followed, Opened
from profkit.instrument.tracking.boundaries import Boundaries
from profkit.instrument.tracking.notes import Plain
from profkit.instrument.tracking.pending import EVALUATION, Pending
from profkit.instrument.tracking.regions import Regions
from profkit.instrument.tracking.states import (
    CHECKPOINT,
    IGNORED_INSIDE,
    OPEN_MODES,
    UNKNOWN,
    LoopEvent,
    LoopState,
    Progress,
    StepMode,
)
from profkit.instrument.tracking.steps import BY_HAND, MOST_BACKWARDS, Steps
from profkit.instrument.tracking.threads import ThreadFilter
from profkit.vocab import SKIPPED_STEP, ZERO_GRAD, Phase

_DATA, _H2D, _FORWARD = Phase.DATA.value, Phase.H2D.value, Phase.FORWARD.value
_BACKWARD, _OPTIMIZER, _OTHER = Phase.BACKWARD.value, Phase.OPTIMIZER.value, Phase.OTHER.value
_NO_FORWARD, _NO_BACKWARD = IGNORED_INSIDE[_FORWARD], IGNORED_INSIDE[_BACKWARD]
_NO_OPTIMIZER, _NO_CHECKPOINT = IGNORED_INSIDE[_OPTIMIZER], IGNORED_INSIDE[CHECKPOINT]

_IDLE, _TRAINING = Progress.IDLE, Progress.TRAINING
_ACTIVITY, _TRAINING_EVENT = LoopEvent.ACTIVITY, LoopEvent.TRAINING

_this_thread = threading.get_ident


class Tracker:
    """Follows one training loop. Frameworks call it; it never raises and never waits.

    A report compares its thread before it asks the `ThreadFilter`, and the progress before it fires
    an event. Both only save calls on the hot path.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        on_training: Callable[[], None] = lambda: None,
        clock: Clock = now_ns,
    ) -> None:
        self.recorder = recorder
        self._on_training = on_training
        self._has_trained = False
        """True once gradients were computed, which calls `on_training` once."""
        self.framework = ""
        """The framework whose gradients were computed last."""
        self._clock = clock
        self._state = state = LoopState()
        self._threads = ThreadFilter(self._follow)
        self._pending = pending = Pending(recorder, state, self._threads)
        self._regions = Regions(recorder, state, pending.take)
        self._boundaries = Boundaries(self, recorder, self._regions, state)
        self.notes = notes = self._boundaries.notes
        """Buffers the reports of hooks in a loop that trains."""
        self._steps = Steps(recorder, notes, pending, state, clock)
        self.forget_loader = self._steps.loaders.forget
        """Takes an iterator of a loader that has ended."""
        self.follow_loader = self._steps.loaders.follow
        """Takes an iterator of a loader, which may yield batches as long as it exists."""
        self.seen = Seen()
        """The objects by which the job is described."""
        self.models: list[TrainedModels] = []
        """The models that the job trains, for each framework."""
        self.keep_rows = pending.take_rows
        """Takes rows from the inside of loaders, which have no events."""
        self.pass_boundary = self._steps.pass_boundary
        """Takes the end of a step, at which a batch is waited for."""
        pending.keep = recorder.redirect(pending.take, notes, self.catch_up)

    def begin_data(self, *, starts_epoch: bool = False) -> Opened:
        """Begin waiting for a batch, or for a loader that starts an epoch."""
        state, steps, threads = self._state, self._steps, self._threads
        if _this_thread() != threads.thread and not threads.accepts():
            return None
        self.catch_up()
        if state.inside == _OTHER:
            return None
        if state.inside == _OPTIMIZER:  # one that raised has not reported its end
            for span in reversed(self._regions.opened.copy()):
                self.end(span, UNKNOWN)
        if state.model_called and state.progress is _TRAINING and not steps.losses.backwards:
            self._pending.drop_evaluated(self.models)
        steps.pass_boundary(starts_epoch=starts_epoch)
        if starts_epoch or not (self._has_trained and steps.known):
            return self._regions.open(_DATA, _DATA)
        is_noted = self._boundaries.open(_this_thread())
        return self.notes.begin_wait() if is_noted else self._regions.open(_DATA, _DATA)

    def end_data(self, span: Opened, samples: int, error: str | None = None) -> None:
        """End the wait for a batch of this size; 0 samples if the loader has ended."""
        self.catch_up()
        if samples:
            if self._follows():
                self._pending.batches.append(samples)
            if not self._threads.decided or _this_thread() != self._threads.thread:
                self._steps.elsewhere.append((_this_thread(), samples))
        self.end(span, error)
        if self._regions.note is None:
            self.notes.allow_copies()

    def end_batch(self, span: Opened, batch: Any) -> None:
        """End the wait for this batch."""
        self.end_data(span, count_batch(batch))

    def begin_copy(self) -> Followed | None:
        """Begin copying a batch to the device; copies after a model call are ignored."""
        self.catch_up()
        return None if self._state.model_called else self._open_alone(_H2D, _H2D)

    def begin_reset(self) -> Followed | None:
        """Begin resetting gradients, which says nothing about the loop."""
        self.catch_up()
        return self._open_alone(_OPTIMIZER, ZERO_GRAD)

    def begin_forward(self, *, with_gradients: bool | None) -> Followed | None:
        """Begin a call of a model by the loop; `None` if a model that it trains is evaluated."""
        self.catch_up()
        state, steps = self._state, self._steps
        if _this_thread() != self._threads.thread and not self._threads.accepts():
            return None
        if state.inside in _NO_FORWARD:
            if with_gradients and state.inside == _BACKWARD:
                self.seen.recomputes = True
            return None
        state.model_called = True
        if not with_gradients:
            if with_gradients is None and not state.inside and steps.has_stepped():
                return self._regions.open(_OTHER, EVALUATION)
            steps.fire(_ACTIVITY)
        else:
            if not state.inside:
                if not steps.known and steps.losses.backwards and self._updates_by_hand():
                    steps.begin_by_hand()
                if steps.stepped and not (steps.is_first and self._leaves_models()):
                    note = self._regions.note
                    steps.end_round(note[1] if note is not None else None)
            if state.progress is not _TRAINING:
                steps.fire(_TRAINING_EVENT)
            steps.forwards += 1
        return self._regions.open(_FORWARD, _FORWARD)

    def begin_backward(self, framework: str = "", loss: float | None = None) -> Followed | None:
        """Begin computing gradients of a loss; `None` if only the device knows its value."""
        self.catch_up()
        state, steps, threads = self._state, self._steps, self._threads
        if not threads.decided:
            self._decide()
        if _this_thread() != threads.thread or state.inside in _NO_BACKWARD:
            return None
        self.framework = framework
        if state.progress is not _TRAINING:
            steps.fire(_TRAINING_EVENT)
        if not self._has_trained:
            self._note_training()
        steps.note_backward(loss)
        return self._regions.open(_BACKWARD, _BACKWARD)

    def begin_optimizer(self, optimizer: int) -> Followed | None:
        """Begin an optimizer's step, or a gradient scaler's decision to take it."""
        if self.notes and _this_thread() == self._threads.thread:
            self._boundaries.replay(one_by_one=True)  # a step may have ended in between
        state, steps = self._state, self._steps
        if _this_thread() != self._threads.thread and not self._threads.accepts():
            return None
        if state.inside in _NO_OPTIMIZER:
            return None
        if not self._has_trained:  # gradients may be computed by a function of the loop's own
            self._decide()
            self._note_training()
        if optimizer in steps.stepped:
            steps.come_round()
        if state.progress is not _TRAINING:
            steps.fire(_TRAINING_EVENT)
        steps.note_optimizers((optimizer,))
        return self._regions.open(_OPTIMIZER, _OPTIMIZER)

    def pause(self, span: Opened) -> Followed | None:
        """Interrupt an optimizer that calls the loop back; returns what `resume` takes."""
        self.catch_up()
        span = self._boundaries.find(span, ends=False)
        if span is None or span not in self._regions.opened or not self._follows():
            return None
        self._regions.pause(span)
        return span

    def resume(self, span: Followed | None) -> None:
        """Go on with an optimizer that was interrupted."""
        self.catch_up()
        if span is not None and span in self._regions.opened:
            self._regions.resume(span)

    def begin_checkpoint(self) -> Followed | None:
        """Begin writing the job's state to a file. A batch that waits is trained on afterwards."""
        self.catch_up()
        state = self._state
        if state.progress is _IDLE or state.inside in _NO_CHECKPOINT or not self._follows():
            return None
        return self._regions.open(_OTHER, CHECKPOINT)

    def end(self, span: Opened, error: str | None = None) -> None:
        """End a region. Does nothing if it is closed, or if its thread is no longer followed."""
        self.catch_up()
        span = self._boundaries.find(span, ends=True)
        if span is not None and span in self._regions.opened:
            self._steps.last_end_ns = self._regions.close(span, error)

    def name_skipped(self, span: Opened) -> None:
        """Note that the scaler found infinities, and the optimizer did not step."""
        self.catch_up()
        span = self._boundaries.find(span, ends=False)
        if span is not None:
            span.name = SKIPPED_STEP

    def note_scale(self, scale: float | None) -> None:
        """Note the gradient scaler's scale; `None` if only the device knows it."""
        self.catch_up()
        self._steps.grad_scale = scale
        self._steps.losses.scale = scale or 1.0

    def catch_up(self) -> None:
        """Replay what this thread has buffered; another thread's loop is still running."""
        if self.notes and _this_thread() == self._threads.thread:
            self._boundaries.replay()

    def take_plain(self, plain: Plain) -> None:
        """Take a sequence of phases without nesting."""
        rows, batches, optimizers, gradients, trains, used, ended, boundary = plain
        steps, pending = self._steps, self._pending
        self._state.model_called = used
        if ended:
            steps.last_end_ns = ended
        for self.framework, loss in gradients:
            steps.note_backward(loss)
        if optimizers:
            steps.note_optimizers(optimizers)
        pending.batches += batches
        if self._state.progress is _TRAINING:
            for row, start, end in rows:
                pending.take(row, start, end)
        else:
            pending.rows += rows
            if trains:
                steps.fire(_TRAINING_EVENT)
        if boundary:
            steps.pass_boundary(boundary)

    def _open_alone(self, phase: str, name: str) -> Followed | None:
        """Open a region that is no part of another."""
        is_alone = not self._state.inside and self._follows()
        return self._regions.open(phase, name) if is_alone else None

    def _follows(self) -> bool:
        """Return true for a report of the followed thread that is not part of an aside."""
        threads = self._threads
        is_followed = _this_thread() == threads.thread or threads.accepts()
        return is_followed and self._state.inside != _OTHER

    def _note_training(self) -> None:
        self._has_trained = True
        self._on_training()

    def _leaves_models(self) -> bool:
        """Return true if the first step of a loop without a loader waits for an optimizer."""
        if self._state.batch_seen or BY_HAND in self._steps.known:
            return False
        return leave_models(self.models, self.seen.living_optimizers())

    def _updates_by_hand(self) -> bool:
        """Return true if the loop, which has called no optimizer yet, has updated parameters."""
        if self._steps.losses.backwards > MOST_BACKWARDS:
            return True
        return any(models.are_updated() for models in self.models)

    def _decide(self) -> None:
        """Follow the calling thread as the training one, unless one is already chosen."""
        if self._threads.decide():
            self._pending.release()

    def _follow(self) -> None:
        """Forget the reports of the thread that was followed before."""
        self._boundaries.forget()
        self._regions.forget()
        self._steps.forget_thread()

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

    def note_step(self, loss: float, epoch: int, grad_scale: float | None) -> None:
        """Note what only the loop knows of the step that is open, on a device as on the host."""
        self.loss = loss
        self.note_epoch(epoch)
        if grad_scale is not None:
            self.note_scale(grad_scale)

    def end_loop(self) -> None:
        """End the last step of a loop that waits for no further batch."""
        self.catch_up()
        self._steps.pass_boundary()

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
