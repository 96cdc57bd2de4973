"""Makes steps of what a loop does, by the tables in `states.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from profkit.clock import Clock
from profkit.instrument.recorder import Recorder
from profkit.instrument.tracking.notes import Notes
from profkit.instrument.tracking.pending import MOST_IN_A_ROW, Pending
from profkit.instrument.tracking.states import (
    MARKED_MODES,
    OPEN_MODES,
    STEP_MODES,
    TRANSITIONS,
    Action,
    LoopEvent,
    LoopState,
    Progress,
    StepMode,
)

MOST_ROUNDS = 16
"""An optimizer that does not step while another steps this often is considered gone."""

_TRAINING, _INFERRED = Progress.TRAINING, StepMode.INFERRED
_BATCH, _STEP_END = LoopEvent.BATCH, LoopEvent.STEP_END

Run = Callable[[int | None], None]
"""Runs an action; its argument is the end of a step that it ends, or `None` for now."""


class Steps:
    """Ends steps, and settles what is pending, as events of the loop require."""

    def __init__(
        self, recorder: Recorder, notes: Notes, pending: Pending, state: LoopState, clock: Clock
    ) -> None:
        self._recorder = recorder
        self._notes = notes
        self._pending = pending
        self._state = state
        self._clock = clock
        self.stepped: set[int] = set()
        """The optimizers that have stepped since the last step ended."""
        self.known: set[int] = set()
        """The optimizers that step in each step, in a loop without a loader."""
        self._rounds = 0
        """How often an optimizer has stepped again before all known ones have stepped."""
        self.last_end_ns = 0
        """The end of the last region."""
        self.epoch: int | None = None
        self.loss: float | None = None
        self.loss_scale = 1.0
        self.grad_scale: float | None = None
        actions: dict[Action, Run] = {
            Action.BEGIN_LOOP: lambda end: recorder.begin(),
            Action.END_DUE_STEP: self.end_due_step,
            Action.SETTLE_USED: self._settle_used,
            Action.SETTLE_FETCHED: functools.partial(self._settle_used, most_ahead=1),
            Action.SETTLE_TRAINED: lambda end: self.settle(evaluation=False),
            Action.SETTLE_EVALUATED: lambda end: self.settle(evaluation=True),
        }
        # Resolved here, so that an event costs two look-ups and no more.
        self._on: dict[Progress, dict[LoopEvent, tuple[tuple[Run, ...], Progress]]]
        self._on = {progress: {} for progress in Progress}
        for (progress, event), (names, following) in TRANSITIONS.items():
            self._on[progress][event] = tuple(map(actions.__getitem__, names)), following

    def fire(self, event: LoopEvent, end: int | None = None) -> None:
        """Run the actions of an event; a step that ends with it ends at `end`, or now."""
        state = self._state
        actions, following = self._on[state.progress][event]
        for run in actions:
            run(end)
        state.progress = following

    def change_mode(self, event: LoopEvent) -> None:
        """Change how steps are delimited."""
        mode = self._state.mode
        self._state.mode = STEP_MODES.get((mode, event), mode)

    def pass_boundary(self, end: int | None = None, *, starts_epoch: bool = False) -> None:
        """Wait for a batch, now or at the time `end`; a step may end here."""
        state = self._state
        state.inside = ""
        if starts_epoch:
            self.fire(LoopEvent.NEW_EPOCH, end)
            state.starts_epoch = True
        elif state.mode is not _INFERRED and state.mode in OPEN_MODES:
            self.fire(LoopEvent.BATCH_IN_STEP, end)
        else:
            self.fire(_BATCH, end)
        state.batch_seen = True
        state.model_called = False

    def end_due_step(self, end: int | None) -> None:
        """End the step if it ends where a batch is waited for."""
        state = self._state
        if state.mode is _INFERRED:
            is_due = bool(self.stepped)
        else:
            is_due = state.mode in MARKED_MODES and state.progress is _TRAINING
        if is_due:
            self.end_step(end)

    def end_round(self) -> None:
        """End a step if no loader delimits it and every known optimizer has stepped."""
        state = self._state
        if (
            self.stepped
            and state.mode is _INFERRED
            and not state.batch_seen
            and self.stepped >= self.known
        ):
            self.end_step()

    def come_round(self) -> None:
        """Note that an optimizer steps again, in a loop without a loader: a step may end.

        Its model was called inside of it, as by a closure, and has begun no step.
        """
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            self.known &= self.stepped
        self.end_round()

    def end_step(
        self, end: int | None = None, samples: int | None = None, batches: int | None = None
    ) -> None:
        """End a step, now or at the time `end`."""
        self._notes.close()
        self.settle(evaluation=False)
        counted = self._pending.take_samples(batches)
        if end is None:
            end = self._clock()
        if samples is None:
            samples = counted
        self._recorder.end_step(end, samples, self.loss, self.grad_scale, self.epoch)
        self.stepped.clear()
        self._rounds = 0
        self.loss = None
        self._state.batch_seen = False
        self.fire(_STEP_END)
        if self._state.mode is not _INFERRED:
            self.change_mode(_STEP_END)

    def settle(self, *, evaluation: bool | None = None) -> None:
        """Settle what is pending, as training if the loop has trained since the last batch."""
        state = self._state
        if evaluation is None:
            evaluation = state.progress is not _TRAINING
        if state.starts_epoch and not evaluation:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        state.starts_epoch = False
        self._pending.settle(evaluation=evaluation)

    def _settle_used(self, end: int | None, *, most_ahead: int = MOST_IN_A_ROW) -> None:
        """Settle fetched batches, unless the loop may still train on them."""
        state, fetched = self._state, self._pending.batches
        used = state.model_called or state.progress is _TRAINING
        if fetched and (used or len(fetched) >= most_ahead):
            self.settle()

    def forget_thread(self) -> None:
        """Forget the loop of a thread that is no longer followed."""
        state = self._state
        self.fire(LoopEvent.RESET)
        state.batch_seen = state.starts_epoch = False
        state.model_called = True
        self.epoch = None
        self._pending.forget()
        self.stepped.clear()
        self.known.clear()

    def start_over(self) -> None:
        """Forget the loop of a trainer that has ended; time until the next belongs to no step."""
        state = self._state
        self.settle()
        self.end_due_step(self.last_end_ns)
        self._notes.close()
        if state.progress is not Progress.IDLE:  # spans were recorded since the last step
            self._recorder.step_index += 1
        self.fire(LoopEvent.RESET)
        self.change_mode(LoopEvent.RESET)
        state.batch_seen = False
        self._rounds = 0
        self.epoch = self.loss = None
        self._pending.trained.clear()
        self.stepped.clear()
        self.known.clear()
