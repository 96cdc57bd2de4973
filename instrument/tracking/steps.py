"""Makes steps of what a loop does, by the tables in `states.py`."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

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
from profkit.vocab import Phase

MOST_ROUNDS = 16
"""An optimizer that does not step while another steps this often is considered gone.

So is a loader, from which no batch is taken while the optimizers step this often.
"""

MOST_BACKWARDS = 256
"""A loop that computes gradients this often and calls no optimizer updates parameters itself."""

BY_HAND = 0
"""The optimizer of a loop that updates its parameters itself; no object has this id."""

_TRAINING, _INFERRED = Progress.TRAINING, StepMode.INFERRED
_OPTIMIZER = Phase.OPTIMIZER.value
_BATCH, _STEP_END = LoopEvent.BATCH, LoopEvent.STEP_END

Run = Callable[[int | None], None]
"""Runs an action; its argument is the end of a step that it ends, or `None` for now."""


class Losses:
    """The losses of one step.

    A step that accumulates gradients over several batches has computed a part of its loss with
    each, so its loss is their sum. If a batch has several losses, as those of several models, the
    last one counts. An optimizer that computes the same loss again and again counts once.
    """

    def __init__(self) -> None:
        self.loss: float | None = None
        """The last loss, or the one that the loop itself has reported."""
        self.scale = 1.0
        self.backwards = 0
        self._last: float | None = None
        self._outside = self._inside = 0.0

    def add(self, loss: float | None, *, in_optimizer: bool) -> None:
        """Add a backward, with its loss if the host knows it."""
        self.backwards += 1
        if loss is None:
            return
        self.loss = self._last = loss / self.scale
        if in_optimizer:
            self._inside = self._last
        else:
            self._outside += self._last

    def total(self, batches: int, optimizers: int) -> float | None:
        """Return the loss of a step of so many batches (0: not known) and optimizers."""
        is_last = self.loss is not self._last or self.backwards < 2 or optimizers > 1
        if self.loss is None or is_last or (batches and self.backwards > batches):
            return self.loss
        return self._outside + self._inside

    def clear(self) -> None:
        """Begin the next step."""
        self.loss = self._last = None
        self.backwards = 0
        self._outside = self._inside = 0.0


class OpenLoaders:
    """Knows whether a loop can still take a batch of a loader."""

    def __init__(self, recorder: Recorder) -> None:
        self.open: weakref.WeakSet[Any] = weakref.WeakSet()
        """The iterators that exist and have not ended."""
        self.had_any = False
        self._recorder = recorder
        self._ended_at: int | None = None
        """The number of the open step when a loader ended last."""

    def follow(self, iterator: object) -> None:
        """Note that the loop may take batches from an iterator, as long as that exists."""
        self.had_any = True
        self.open.add(iterator)

    def forget(self, iterator: object) -> None:
        """Note that an iterator has ended."""
        self.open.discard(iterator)
        self._ended_at = self._recorder.step_now

    @property
    def are_over(self) -> bool:
        """True if all have ended, and the loop trains on nothing else since. For any thread."""
        ended_at = self._ended_at
        if ended_at is None or self.open:
            return False
        return self._recorder.step_now - ended_at <= 1  # the step that was open may have ended


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
        self.is_first = True
        """True until a step of the loop has ended."""
        self._rounds = 0
        """How often an optimizer has stepped again before all known ones have stepped."""
        self._is_noted = False
        """True while the boundary that is passed was noted, and so are the reports that follow."""
        self.last_end_ns = 0
        """The end of the last region."""
        self.samples_per_step: int | None = None
        """The number of samples in each step, if the user has said it."""
        self.forwards = 0
        """Number of forwards with gradients in the open step, of those reported at once."""
        self._waited_ns = 0
        """The first wait for a batch after a backward, before any optimizer is known."""
        self.loaders = OpenLoaders(recorder)
        self._repeated: deque[int] = deque()
        """The sizes of the batches on which the loop trains again and again."""
        self.elsewhere: deque[tuple[int, int]] = deque(maxlen=MOST_IN_A_ROW)
        """The thread and the size of batches that the loop itself may not have fetched."""
        self.epoch: int | None = None
        self.losses = Losses()
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
        """Wait for a batch, now or at the time `end` that was noted; a step may end here."""
        state = self._state
        state.inside = ""
        self._is_noted = end is not None
        if not self.known and state.progress is _TRAINING and not self._waited_ns:
            self._waited_ns = self._clock() if end is None else end
        if starts_epoch:
            self.fire(LoopEvent.NEW_EPOCH, end)
            state.starts_epoch = True
        elif state.mode is not _INFERRED and state.mode in OPEN_MODES:
            self.fire(LoopEvent.BATCH_IN_STEP, end)
        else:
            self.fire(_BATCH, end)
        self._is_noted = False
        if not starts_epoch:  # a rank may create an iterator, and have its batches sent to it
            state.batch_seen = True
        state.model_called = False
        if self._repeated:
            self._repeated.clear()

    def end_due_step(self, end: int | None) -> None:
        """End the step if it ends where a batch is waited for."""
        state = self._state
        if state.mode is _INFERRED:
            is_due = bool(self.stepped)
        else:
            is_due = state.mode in MARKED_MODES and state.progress is _TRAINING
        if is_due:
            self.end_step(end)

    def end_round(self, end: int | None = None) -> None:
        """End a step if no loader delimits it and every known optimizer has stepped."""
        state = self._state
        if not self.stepped or state.mode is not _INFERRED or not self.stepped >= self.known:
            return
        if state.batch_seen:
            # A loop that has abandoned its loaders takes no more batches of them.
            if self._rounds <= MOST_ROUNDS and (self.loaders.open or not self.loaders.had_any):
                return
            self._repeated = deque(self._pending.trained)
        self.end_step(end)

    def come_round(self) -> None:
        """Note that an optimizer steps again before a step has ended; it may end now.

        In a loop without a loader, the model was called inside the optimizer, as by a closure, and
        has begun no step.
        """
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            self.known &= self.stepped
        if not self._state.batch_seen:
            self.end_round()

    def has_stepped(self) -> bool:
        """Return true if the open step has trained: without a loader, with every optimizer."""
        is_complete = self._state.batch_seen or self.stepped >= self.known
        return bool(self.stepped) and is_complete

    def note_optimizers(self, optimizers: Iterable[int]) -> None:
        """Note optimizers that step."""
        self.stepped.update(optimizers)
        self.known.update(optimizers)
        if BY_HAND in self.known:
            self.known.discard(BY_HAND)
            self.stepped.discard(BY_HAND)

    def note_backward(self, loss: float | None) -> None:
        """Note gradients, and the loss if the host knows it."""
        self.losses.add(loss, in_optimizer=self._state.inside == _OPTIMIZER)
        if BY_HAND in self.known:
            self.stepped.add(BY_HAND)

    def begin_by_hand(self) -> None:
        """Note that the loop updates its parameters itself, as it has done since the backward."""
        state, pending = self._state, self._pending
        self.known.add(BY_HAND)
        self.stepped.add(BY_HAND)
        if not self._waited_ns or state.mode is not _INFERRED:
            return
        # The step ended where the next batch was waited for; what came then is of the next step.
        batches, rows = pending.batches, pending.rows
        pending.batches, pending.rows = [], []
        self.end_step(self._waited_ns)
        for row, start, end in rows:
            pending.rows.append(((self._recorder.step_index, *row[1:]), start, end))
        pending.batches = batches
        state.batch_seen = True

    def end_step(
        self, end: int | None = None, samples: int | None = None, batches: int | None = None
    ) -> None:
        """End a step, now or at the time `end`."""
        if not self._is_noted:
            self._notes.close()
        self.settle(evaluation=False)
        loss = self.losses.total(len(self._pending.trained), len(self.known))
        counted = self._pending.take_samples(batches)
        if end is None:
            end = self._clock()
        if samples is None:
            samples = counted
            if self._repeated or (self.elsewhere and not counted):
                samples = self._take_repeated()
        if self.samples_per_step is not None:
            samples = self.samples_per_step
        self._recorder.end_step(end, samples, loss, self.grad_scale, self.epoch)
        self.is_first = False
        self.stepped.clear()
        self._forget_round()
        self._state.batch_seen = False
        self.fire(_STEP_END)
        if self._state.mode is not _INFERRED:
            self.change_mode(_STEP_END)

    def _take_repeated(self) -> int:
        """Count the samples of batches that were trained on before, or that another thread has."""
        samples = 0
        batches = max(1, min(self.forwards, self.losses.backwards)) if len(self.known) == 1 else 1
        for _ in range(batches):
            if self._repeated:
                samples += self._repeated[0]
                self._repeated.rotate(-1)
                continue
            thread, size = threading.get_ident(), 0
            while self.elsewhere and not size:
                fetcher, fetched = self.elsewhere.popleft()
                size = fetched if fetcher != thread else 0
            samples += size
        return samples

    def _forget_round(self) -> None:
        """Forget what is counted within a step."""
        self._rounds = self.forwards = self._waited_ns = 0
        self.losses.clear()

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
        self._forget_round()
        self.epoch = None
        self._pending.forget()
        self.stepped.clear()
        self.known.clear()
        self.is_first = True

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
        self._forget_round()
        self.epoch = None
        self._pending.trained.clear()
        self.stepped.clear()
        self.known.clear()
        self.is_first = True
