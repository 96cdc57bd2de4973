"""PyTorch's optimizers, and the gradient scaler that decides whether they step."""

from __future__ import annotations

import functools
import inspect
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from profkit.instrument.frameworks.base import Seams, other_trainer
from profkit.instrument.frameworks.pytorch.compiler import (
    NEVER_COMPILED,
    NEVER_RESET,
    leave_alone,
    outside_compiler,
)
from profkit.instrument.frameworks.shared import Function, call_back, hook_scale, scale_noter
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.recorder import PerThread
from profkit.instrument.rows import Opened
from profkit.instrument.tracking.states import UNKNOWN


def hook_optimizers(patches: Patches, seams: Seams) -> None:
    """Time every optimizer's step, through the hooks that torch calls around it.

    torch does not call the second hook after a step that raised. We notice that when another step
    begins that is not inside the first. The tracker notices it earlier if the loop waits for a
    batch.
    """
    notes, seen = seams.tracker.notes, seams.tracker.seen
    steps: PerThread[list[Opened]] = PerThread(list)
    """The regions of the optimizers that step now in a thread, the innermost last."""
    note_other = other_trainer(seams)
    open_closure = guarded("closure", functools.partial(_open_closure, seams), None)
    count_around = guarded("optimizers around", _count_steps_around, 0)

    @outside_compiler
    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        while steps.own and len(steps.own) > count_around(inspect.currentframe()):
            seams.end(steps.own.pop(), UNKNOWN)
        try:
            number = id(optimizer)
            if number not in seen.optimizers:
                seen.add_optimizer(optimizer)
            span = notes.begin_optimizer(number)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("begin_optimizer", failure)
            span = None
        steps.own.append(span)
        if span is None:
            note_other()
        elif len(args) > 1 or kwargs:
            return open_closure(span, args, kwargs)
        return None

    @outside_compiler
    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if steps.own:
            try:
                notes.end(steps.own.pop())
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("end", failure)

    leave_alone(before)
    leave_alone(after)
    patches.on_undo(register_optimizer_step_pre_hook(before).remove)
    patches.on_undo(register_optimizer_step_post_hook(after).remove)


def _open_closure(seams: Seams, span: Opened, args: Any, kwargs: Any) -> Any:
    """Return a step's arguments with a closure whose work is not the optimizer's own."""
    if "closure" in kwargs and callable(kwargs["closure"]):
        return args, {**kwargs, "closure": call_back(seams, span, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], call_back(seams, span, args[1]), *args[2:]), kwargs
    return None


def _count_steps_around(hook: FrameType | None) -> int:
    """Return how many optimizer steps are open around the one that calls the hook."""
    keeper = hook.f_back if hook else None  # it keeps the compiler away
    step = keeper.f_back if keeper else None
    if step is None:
        return 0
    count = 0
    frame = step.f_back
    while frame is not None:
        count += frame.f_code is step.f_code
        frame = frame.f_back
    return count


def hook_resets(patches: Patches, seams: Seams) -> None:
    """Time `Optimizer.zero_grad`; `Module.zero_grad` may be compiled, and is left alone."""
    begin, end = outside_compiler(seams.begin_reset), outside_compiler(seams.end)
    original: Function = torch.optim.Optimizer.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        span = begin()
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            end(span, type(error).__name__)
            raise
        end(span)
        return result

    leave_alone(zero_grad, NEVER_RESET)
    patches.replace(torch.optim.Optimizer, "zero_grad", lambda _: zero_grad)


def hook_scaler(patches: Patches, seams: Seams) -> None:
    """Name steps that the scaler skips because gradients overflowed, and note the loss scale.

    A compiled function may call the scaler. What we call here must not be compiled then.
    """
    watch = outside_compiler(guarded("scaler", _watch_step, None))
    begin, end = outside_compiler(seams.begin_optimizer), outside_compiler(seams.end)
    name_skipped = outside_compiler(seams.name_skipped)
    unwatch = outside_compiler(lambda handle: handle.remove())
    scaler = torch.amp.GradScaler
    original: Function = scaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        span = begin(id(optimizer))
        stepped: list[bool] = []
        handle = watch(optimizer, stepped)
        try:
            result = original(self, optimizer, *args, **kwargs)
            if handle and not stepped and self.is_enabled():
                name_skipped(span)
        except BaseException as error:
            end(span, type(error).__name__)
            raise
        finally:
            if handle:
                unwatch(handle)
        end(span)
        return result

    leave_alone(step, NEVER_COMPILED)
    patches.replace(scaler, "step", lambda _: step)
    note = outside_compiler(scale_noter(seams, _host_scale))
    for name in ("scale", "update"):
        hook_scale(patches, scaler, name, note)
        leave_alone(getattr(scaler, name), NEVER_COMPILED)


def _watch_step(optimizer: Any, stepped: list[bool]) -> Any:
    """Have the next step of an optimizer append to a list; return the handle of the hook."""
    note = outside_compiler(lambda *_: stepped.append(True))
    leave_alone(note)
    return optimizer.register_step_pre_hook(note)


def _host_scale(scaler: Any) -> float | None:
    """Return the scale if the host has it; reading it from a device would wait."""
    scale = getattr(scaler, "_scale", None)
    return float(scale) if scale is not None and scale.device.type == "cpu" else None
