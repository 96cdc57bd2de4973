"""The states of a followed loop, and the tables of their transitions.

`python -m profkit.instrument.tracking.states` prints the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from profkit.vocab import PHASES, Phase


class _Member(Enum):
    """An enum whose members hash by identity, which is faster than by name."""

    __hash__ = object.__hash__


class Progress(_Member):
    """The loop's activity since it last waited for a batch, as far as it is known."""

    IDLE = "no loop has begun"
    UNDECIDED = "nothing shows yet if the loop trains or evaluates"
    TRAINING = "the loop trains"


class StepMode(_Member):
    """The ways in which the steps of a loop are delimited."""

    INFERRED = "a step ends when a batch is waited for after an optimizer has stepped"
    BETWEEN = "the loop delimits its steps, and none is open or marked"
    OPEN = "the loop has begun a step and will end it"
    MARKED = "the loop has marked this step, which ends when the next batch is waited for"
    OPEN_MARKED = "the loop has marked this step, then begun one"


OPEN_MODES = frozenset({StepMode.OPEN, StepMode.OPEN_MARKED})
MARKED_MODES = frozenset({StepMode.MARKED, StepMode.OPEN_MARKED})


class LoopEvent(_Member):
    """Something that happens in the loop."""

    BATCH = "a batch is waited for"
    BATCH_IN_STEP = "a batch is waited for inside a step that the loop has begun"
    NEW_EPOCH = "a loader that starts an epoch is waited for"
    ACTIVITY = "a model is called without gradients, or the loop marks a step"
    TRAINING = "a model is called with gradients, an optimizer steps, or the loop begins a step"
    ASIDE = "an evaluation, a checkpoint or logging begins"
    STEP_BEGUN = "the loop begins a step"
    STEP_CLOSED = "the loop ends the step that it has begun"
    STEP_MARKED = "the loop marks a step"
    STEP_END = "a step has ended"
    RESET = "a trainer begins or ends, or another thread is followed"


class Action(_Member):
    """Something that a transition does, in `Steps`."""

    BEGIN_LOOP = "start the clock of the first step"
    END_DUE_STEP = "end the step, if it ends where a batch is waited for"
    SETTLE_USED = "settle the buffered batches, if a model was called or there are too many"
    SETTLE_FETCHED = "settle the buffered batches, if there are any"
    SETTLE_TRAINED = "count everything buffered as training"
    SETTLE_EVALUATED = "count everything buffered as evaluation"


class Transition(NamedTuple):
    """The actions of an event, in order, and the progress after them."""

    actions: tuple[Action, ...]
    following: Progress


_IDLE, _UNDECIDED, _TRAINING = Progress.IDLE, Progress.UNDECIDED, Progress.TRAINING
_TO_BATCH = (Action.END_DUE_STEP, Action.SETTLE_USED)
_TO_EPOCH = (Action.END_DUE_STEP, Action.SETTLE_FETCHED)
_BEGIN = (Action.BEGIN_LOOP,)
_TRAINED = (Action.SETTLE_TRAINED,)
_EVALUATED = (Action.SETTLE_EVALUATED,)

TRANSITIONS: Final[Mapping[tuple[Progress, LoopEvent], Transition]] = {
    (_IDLE, LoopEvent.BATCH): Transition(_BEGIN + _TO_BATCH, _UNDECIDED),
    (_IDLE, LoopEvent.BATCH_IN_STEP): Transition(_BEGIN + _TO_BATCH, _TRAINING),
    (_IDLE, LoopEvent.NEW_EPOCH): Transition(_BEGIN + _TO_EPOCH, _UNDECIDED),
    (_IDLE, LoopEvent.ACTIVITY): Transition(_BEGIN, _UNDECIDED),
    (_IDLE, LoopEvent.TRAINING): Transition(_BEGIN + _TRAINED, _TRAINING),
    (_IDLE, LoopEvent.ASIDE): Transition(_EVALUATED, _IDLE),
    (_IDLE, LoopEvent.STEP_END): Transition((), _IDLE),
    (_IDLE, LoopEvent.RESET): Transition((), _IDLE),
    (_UNDECIDED, LoopEvent.BATCH): Transition(_TO_BATCH, _UNDECIDED),
    (_UNDECIDED, LoopEvent.BATCH_IN_STEP): Transition(_TO_BATCH, _TRAINING),
    (_UNDECIDED, LoopEvent.NEW_EPOCH): Transition(_TO_EPOCH, _UNDECIDED),
    (_UNDECIDED, LoopEvent.ACTIVITY): Transition((), _UNDECIDED),
    (_UNDECIDED, LoopEvent.TRAINING): Transition(_TRAINED, _TRAINING),
    (_UNDECIDED, LoopEvent.ASIDE): Transition(_EVALUATED, _UNDECIDED),
    (_UNDECIDED, LoopEvent.STEP_END): Transition((), _UNDECIDED),
    (_UNDECIDED, LoopEvent.RESET): Transition((), _IDLE),
    (_TRAINING, LoopEvent.BATCH): Transition(_TO_BATCH, _UNDECIDED),
    (_TRAINING, LoopEvent.BATCH_IN_STEP): Transition(_TO_BATCH, _TRAINING),
    (_TRAINING, LoopEvent.NEW_EPOCH): Transition(_TO_EPOCH, _UNDECIDED),
    (_TRAINING, LoopEvent.ACTIVITY): Transition((), _TRAINING),
    (_TRAINING, LoopEvent.TRAINING): Transition((), _TRAINING),
    (_TRAINING, LoopEvent.ASIDE): Transition((), _TRAINING),
    (_TRAINING, LoopEvent.STEP_END): Transition((), _UNDECIDED),
    (_TRAINING, LoopEvent.RESET): Transition((), _IDLE),
}
"""The actions and the next progress for each event that concerns progress."""

STEP_MODES: Final[Mapping[tuple[StepMode, LoopEvent], StepMode]] = {
    (StepMode.INFERRED, LoopEvent.STEP_BEGUN): StepMode.OPEN,
    (StepMode.INFERRED, LoopEvent.STEP_MARKED): StepMode.MARKED,
    (StepMode.BETWEEN, LoopEvent.STEP_BEGUN): StepMode.OPEN,
    (StepMode.BETWEEN, LoopEvent.STEP_MARKED): StepMode.MARKED,
    (StepMode.BETWEEN, LoopEvent.RESET): StepMode.INFERRED,
    (StepMode.OPEN, LoopEvent.STEP_CLOSED): StepMode.BETWEEN,
    (StepMode.OPEN, LoopEvent.RESET): StepMode.INFERRED,
    (StepMode.MARKED, LoopEvent.STEP_BEGUN): StepMode.OPEN_MARKED,
    (StepMode.MARKED, LoopEvent.STEP_END): StepMode.BETWEEN,
    (StepMode.MARKED, LoopEvent.RESET): StepMode.INFERRED,
    (StepMode.OPEN_MARKED, LoopEvent.STEP_CLOSED): StepMode.MARKED,
    (StepMode.OPEN_MARKED, LoopEvent.STEP_END): StepMode.OPEN,
    (StepMode.OPEN_MARKED, LoopEvent.RESET): StepMode.INFERRED,
}
"""The next mode for each event that changes it; any other event leaves the mode as it is."""

CHECKPOINT: Final = "checkpoint"
UNKNOWN: Final = "unknown"
"""The error of a region that never ended, because an exception has left it."""

IGNORED_INSIDE: Final[Mapping[str, frozenset[str]]] = {
    Phase.DATA.value: frozenset({Phase.OTHER.value}),
    Phase.H2D.value: frozenset(PHASES),
    Phase.FORWARD.value: frozenset({Phase.BACKWARD.value, Phase.OTHER.value}),
    Phase.BACKWARD.value: frozenset({Phase.BACKWARD.value, Phase.OTHER.value}),
    Phase.OPTIMIZER.value: frozenset({Phase.OPTIMIZER.value, Phase.OTHER.value}),
    Phase.OTHER.value: frozenset({Phase.OTHER.value}),
    CHECKPOINT: frozenset(PHASES),
}
"""The open phases inside which a report of this phase is ignored, because it is part of them."""


@dataclass(slots=True, eq=False)
class LoopState:
    """The state of the followed loop, shared by the parts of the tracker."""

    progress: Progress = Progress.IDLE
    mode: StepMode = StepMode.INFERRED
    inside: str = ""
    """The phase of the innermost open region, or nothing."""
    model_called: bool = True
    """True from a model call, or an aside, until a batch is waited for: copies are ignored."""
    batch_seen: bool = False
    """True if the open step has waited for a batch, so that loaders delimit the steps."""
    starts_epoch: bool = False
    """True from the start of a loader until its first batch counts as trained or evaluated."""


def describe() -> str:
    """Return the tables of transitions as text, one line per state and event."""
    lines = []
    for (progress, event), (actions, following) in TRANSITIONS.items():
        done = ", ".join(action.name for action in actions) or "-"
        lines.append(f"{progress.name:10} {event.name:14} {done:42} {following.name}")
    for (mode, event), next_mode in STEP_MODES.items():
        lines.append(f"{mode.name:11} {event.name:12} {next_mode.name}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe())
