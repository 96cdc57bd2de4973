"""The time that the schedule of a pipeline takes itself, between its stages and messages.

On a device nothing of this is recorded: the host does it while the device still works.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.stages import (
    BACKWARDS,
    FORWARD,
    HAND_OVER,
    LOSS,
    OPERATIONS,
    once_imported,
    replace,
)
from profkit.instrument.frameworks.shared import Function, timed
from profkit.instrument.guard import Patches, guarded
from profkit.vocab import PIPELINE_BATCHES, PIPELINE_SCHEDULE, Phase

_STEP: Final = "step"

_TRAINS: Final = "_has_backward"
"""The attribute of schedules that is false in `eval`, and if they have no loss."""

_DIVIDES: Final = ("_split_inputs", "_check_inputs", "_merge_outputs", "_update_losses")
"""The methods of schedules that divide a batch, or join what came of its microbatches."""

_PREPARES: Final = ("_initialize_stage", "_initialize_stages")
"""The methods of schedules that exchange shapes, which is recorded as such."""

_GATHERS: Final = "_assert_unsharded"
"""The method of schedules that waits for the weights of a stage."""

_WAIT: Final = "_wait_batch_p2p"
"""The function of schedules that waits for messages; torch 2.4 has none."""


IsEmpty = Callable[[tuple[Any, ...], Any], bool]
"""It returns true if a call had nothing to do, by its arguments and its result."""


def _never(args: tuple[Any, ...], result: Any) -> bool:
    return False


def _lists_nothing(args: tuple[Any, ...], result: Any) -> bool:
    return not result


def _waits_for_nothing(args: tuple[Any, ...], result: Any) -> bool:
    return bool(args) and not args[0]


def _has_no_loss(args: tuple[Any, ...], result: Any) -> bool:
    return not args[1].is_last


def _has_no_shards(args: tuple[Any, ...], result: Any) -> bool:
    return not hasattr(args[1].submod, "unshard")


class OwnTime(threading.local):
    """Where a schedule's own time began, in a thread that runs its step."""

    running: bool = False
    since: int = 0
    in_part: bool = False
    """True while a part of the step runs which is not the schedule's own time."""


class Schedules:
    """Records what passes between the parts of a schedule's step."""

    def __init__(self, seams: Seams) -> None:
        self._seams, self._recorder = seams, seams.recorder
        self._own = OwnTime()
        self._keep = guarded("schedule", self._keep_unguarded, None)
        self.sees_waits = False
        """True if waits for messages are parts; otherwise they would be counted twice."""

    def evaluate(self, original: Function) -> Function:
        """Return the step of a schedule, which is evaluation if it computes no gradients.

        Its forwards and messages would otherwise count as those of a step that trains.
        """
        seams = self._seams

        @functools.wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(schedule, _TRAINS, True) or torch.compiler.is_compiling():
                return original(schedule, *args, **kwargs)
            return timed(seams, seams.begin_evaluation(), original, schedule, *args, **kwargs)

        return step

    def step(self, original: Function) -> Function:
        """Return the step of a schedule, which records its own time."""
        own = self._own

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if own.running or self._recorder.device is not None or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            own.running, own.in_part = True, False
            own.since = self._recorder.clock()
            try:
                return original(*args, **kwargs)
            finally:
                own.running = False
                self._end_own_time(self._recorder.clock())

        return step

    def part(self, original: Function, *, is_empty: IsEmpty = _never, name: str = "") -> Function:
        """Return a part of the step, which ends the schedule's own time for as long as it runs.

        With a name, it is recorded itself. A call in which it has nothing to do is own time.
        """
        own, clock = self._own, self._recorder.clock
        ask = guarded("schedule", is_empty, False)

        @functools.wraps(original)
        def part(*args: Any, **kwargs: Any) -> Any:
            if not own.running or own.in_part or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            own.in_part = True
            begin, result = clock(), None
            try:
                result = original(*args, **kwargs)
            finally:
                own.in_part = False
                if not ask(args, result):
                    end = clock()
                    self._end_own_time(begin)
                    if name:
                        self._keep(name, begin, end)
                    own.since = end
            return result

        return part

    def _end_own_time(self, end: int) -> None:
        if self.sees_waits:
            self._keep(PIPELINE_SCHEDULE, self._own.since, end)

    def _keep_unguarded(self, name: str, start: int, end: int) -> None:
        self._recorder.keep_inner(Phase.OTHER.value, name, start, end)


def hook_schedules(patches: Patches, seams: Seams) -> Callable[[], None]:
    """Return a function that hooks schedules, once they are imported and their stages hooked."""
    schedules = Schedules(seams)
    part = schedules.part
    divide = functools.partial(part, name=PIPELINE_BATCHES)
    list_messages = functools.partial(part, is_empty=_lists_nothing)

    def step(original: Function) -> Function:
        return schedules.evaluate(schedules.step(original))

    def look(stage: Any, module: Any) -> None:
        base = module._PipelineSchedule  # noqa: SLF001  # no public name
        schedules.sees_waits = hasattr(module, _WAIT)
        for method in (FORWARD, *BACKWARDS):
            replace(patches, stage, method, part)
        for method in OPERATIONS:
            replace(patches, stage, method, list_messages)
        replace(patches, module, HAND_OVER, list_messages)
        replace(patches, module, _WAIT, functools.partial(part, is_empty=_waits_for_nothing))
        replace(patches, base, LOSS, functools.partial(part, is_empty=_has_no_loss))
        for method in _DIVIDES:
            replace(patches, base, method, divide)
        wraps = {_STEP: step, **dict.fromkeys(_PREPARES, part)}
        wraps[_GATHERS] = functools.partial(part, is_empty=_has_no_shards)
        for kind in _all_subclasses(base):
            for method in wraps.keys() & vars(kind).keys():
                replace(patches, kind, method, wraps[method])

    return once_imported("schedules of pipelines", look)


def _all_subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return direct + [each for one in direct for each in _all_subclasses(one)]
