"""The stages of pipelines: their forwards and backwards, and the messages between them.

`torch.distributed.pipelining` calls these functions for each microbatch. They are private parts of
torch. In a version that has others, a stage's forward is the call of its module, its backward is
`torch.autograd.backward`, and the column `microbatch` stays null.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from profkit.instrument.collectives import HERE
from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.collectives import MOST_OPEN, GroupCalls
from profkit.instrument.frameworks.pytorch.ddp import Exchanges
from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.frameworks.pytorch.phases import Calls, ModelCalls
from profkit.instrument.frameworks.shared import Function, Wrap, timed
from profkit.instrument.guard import Patches, guarded
from profkit.vocab import PIPELINE_MESSAGES, Phase

_STAGES: Final = "torch.distributed.pipelining.stage"
_SCHEDULES: Final = "torch.distributed.pipelining.schedules"

FORWARD: Final = "forward_one_chunk"
LOSS: Final = "_maybe_compute_loss"
_SCALE: Final = "scale_grads"
BACKWARDS: Final = (
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "perform_reduce_grad",
    _SCALE,
    "start_gradient_reduction",
    "wait_for_gradient_reduction",
)
"""The methods of a stage that compute gradients, or reduce and scale those of all microbatches."""

_PREPARE: Final = "_prepare_forward_infra"
"""The method that calls a stage's module once, to find the shapes of its messages.

In torch 2.4, which has no `_SCALE`, the constructor does that.
"""


OPERATIONS: Final = (
    "get_fwd_recv_ops",
    "get_fwd_send_ops",
    "get_bwd_recv_ops",
    "get_bwd_send_ops",
)
"""The methods of a stage that list a microbatch's messages."""

HAND_OVER: Final = "_batch_p2p"
"""The function of schedules that hands listed messages over to a process group."""


def hook_messages(patches: Patches, calls: GroupCalls) -> Callable[[], None]:
    """Return a function that hooks the messages of pipelines, once they are imported.

    To hand a message over wakes the threads of gloo, which may take the processor. So it counts
    as exchange, as the wait does. On a device it is only a launch.
    """
    note = guarded("microbatch", functools.partial(_note_microbatch, calls), None)
    recorder, clock = calls.log.recorder, calls.log.clock

    def keep_unguarded(start: int, sent: Any) -> None:
        if sent and recorder.device is None:
            recorder.keep_inner(Phase.ALLREDUCE.value, PIPELINE_MESSAGES, start, clock())

    keep = guarded("messages", keep_unguarded, None)

    def time(original: Function, *, lists: bool) -> Function:
        @functools.wraps(original)
        def send(*args: Any, **kwargs: Any) -> Any:
            if HERE.sends or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            HERE.sends = True
            start = clock()
            try:
                result = original(*args, **kwargs)
            finally:
                HERE.sends = False
            if lists:
                note(result, *args[1:], *kwargs.values())
            keep(start, result)
            return result

        return send

    def look(stage: Any, schedules: Any) -> None:
        for method in OPERATIONS:
            replace(patches, stage, method, functools.partial(time, lists=True))
        replace(patches, schedules, HAND_OVER, functools.partial(time, lists=False))

    return once_imported("messages of pipelines", look)


def hook_stages(
    patches: Patches, seams: Seams, models: ModelCalls, exchanges: Exchanges
) -> Callable[[], None]:
    """Return a function that hooks the stages of pipelines, once they are imported."""
    nesting = models.nesting
    note_schedule = guarded("schedule of a pipeline", LAYOUT.note_schedule, None)

    def begin_model(stage: Any, chunk: int, *_: Any) -> Any:
        # A step has one forward of the loop, that of the first microbatch in this rank's first
        # stage: the number of forwards says how many batches a step trains on.
        is_first = chunk == 0 and stage.stage_index < stage.group_size
        has_backward = getattr(stage, "has_backward", True)  # not in `eval` of a schedule
        return models.begin(stage.submod, is_same_batch=not is_first, has_backward=has_backward)

    def begin_loss(schedule: Any, stage: Any, *_: Any) -> Any:
        if not LAYOUT.pipeline:
            note_schedule(schedule)
        # The stage's forward, which was called with gradients, is counted already.
        return seams.begin_forward(with_gradients=False) if stage.is_last else None

    def wrap_forward(begin: Function, original: Function) -> Function:
        begin_guarded = guarded("begin_forward", begin, None)

        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if nesting.inside or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            nesting.inside = True
            try:
                span = begin_guarded(self, *args, *kwargs.values())
                return timed(seams, span, original, self, *args, **kwargs)
            finally:
                nesting.inside = False

        return forward

    def look(stage: Any, schedules: Any) -> None:
        replace(patches, stage, FORWARD, functools.partial(wrap_forward, begin_model))
        schedule = schedules._PipelineSchedule  # noqa: SLF001  # no public name
        replace(patches, schedule, LOSS, functools.partial(wrap_forward, begin_loss))
        _hook_prepare(patches, nesting, stage)
        wrap_backward = functools.partial(_wrap_backward, seams, nesting, exchanges)
        for method in BACKWARDS:
            replace(patches, stage, method, wrap_backward)

    return once_imported("stages of pipelines", look)


def _hook_prepare(patches: Patches, nesting: Calls, stage: Any) -> None:
    """Count no forward where a stage only finds the shapes of its messages."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def prepare(*args: Any, **kwargs: Any) -> Any:
            before, nesting.inside = nesting.inside, True
            try:
                return original(*args, **kwargs)
            finally:
                nesting.inside = before

        return prepare

    method = _PREPARE if hasattr(stage, _SCALE) else "__init__"
    for kind in (stage, *stage.__subclasses__()):
        if method in vars(kind):
            patches.replace(kind, method, wrap)


def _wrap_backward(
    seams: Seams, nesting: Calls, exchanges: Exchanges, original: Function
) -> Function:
    """Time a method that computes gradients; `torch.autograd.backward` inside is part of it."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        exchanges.end_of_backward()
        return result

    @functools.wraps(original)
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if nesting.in_backward or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        span = seams.begin_backward("torch", None)
        nesting.in_backward = True
        try:
            return timed(seams, span, compute, self, *args, **kwargs)
        finally:
            nesting.in_backward = False

    return backward


def once_imported(site: str, hook: Callable[[Any, Any], None]) -> Callable[[], None]:
    """Return a function that calls `hook` once, when torch's pipelines have been imported."""
    hooked: list[bool] = []

    def look() -> None:
        stage = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
        schedules = sys.modules.get(_SCHEDULES)
        if stage is not None and hasattr(schedules, "_PipelineSchedule") and not hooked:
            hooked.append(True)
            hook(stage, schedules)

    return guarded(site, look, None)


def replace(patches: Patches, owner: Any, name: str, wrap: Wrap) -> None:
    if callable(getattr(owner, name, None)):
        patches.replace(owner, name, wrap)


def _note_microbatch(calls: GroupCalls, operations: list[Any], chunk: int) -> None:
    if len(calls.microbatches) >= MOST_OPEN:  # messages that were listed and never sent
        calls.microbatches.clear()
    for operation in operations:
        calls.microbatches[operation.tensor.data_ptr()] = int(chunk)
