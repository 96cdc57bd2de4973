"""PaddlePaddle's optimizers, and the gradient scaler that decides whether they step."""

from __future__ import annotations

import functools
from typing import Any

import paddle

from profkit.instrument.frameworks.base import Seams, other_trainer
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.frameworks.shared import (
    Function,
    call_back,
    hook_scale,
    scale_noter,
    timed,
)
from profkit.instrument.guard import Patches, guarded

_WRAPPERS = ("HybridParallelOptimizer", "HeterParallelOptimizer")
"""What fleet puts around an optimizer; they update parameters without the `step` of that one."""


def hook_optimizers(patches: Patches, seams: Seams) -> None:
    """Time every optimizer's `step` and `minimize`, also of classes that are defined later.

    One that calls another's counts once.
    """
    wrap = functools.partial(_wrap_step, seams)

    def hook(optimizer: type) -> None:
        for name in ("step", "minimize"):
            if name in vars(optimizer):
                patches.replace(optimizer, name, wrap)

    base = paddle.optimizer.Optimizer
    optimizers = [base]
    for optimizer in optimizers:
        optimizers += optimizer.__subclasses__()
    fleet = getattr(paddle.distributed.fleet, "meta_optimizers", None)
    for name in _WRAPPERS:
        wrapper = getattr(fleet, name, None)
        optimizers += [wrapper] if isinstance(wrapper, type) else []
    for optimizer in dict.fromkeys(optimizers):  # each one once
        hook(optimizer)
    hook_guarded = guarded("new optimizer", hook, None)

    def init_subclass(subclass: type, /, **kwargs: Any) -> None:
        super(base, subclass).__init_subclass__(**kwargs)
        hook_guarded(subclass)

    patches.replace(base, "__init_subclass__", lambda _: classmethod(init_subclass))


def _wrap_step(seams: Seams, original: Function) -> Function:
    """Return an optimizer's method, timed."""
    seen = seams.tracker.seen
    remember = guarded("new optimizer", seen.add_optimizer, None)
    note_other = other_trainer(seams)

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return original(self, *args, **kwargs)
        if id(self) not in seen.optimizers:
            remember(self)
        span = seams.begin_optimizer(id(self))
        if span is None:
            note_other()
        elif args and callable(args[0]):  # a closure, as of `LBFGS`
            args = (call_back(seams, span, args[0]), *args[1:])
        return timed(seams, span, original, self, *args, **kwargs)

    return step


def hook_resets(patches: Patches, seams: Seams) -> None:
    """Time an optimizer's `clear_grad`, which some versions give a second name."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def clear_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            span = None if is_traced() else seams.begin_reset()
            return timed(seams, span, original, self, *args, **kwargs)

        return clear_grad

    for name in ("clear_grad", "clear_gradients"):
        if hasattr(paddle.optimizer.Optimizer, name):
            patches.replace(paddle.optimizer.Optimizer, name, wrap)


def hook_scaler(patches: Patches, seams: Seams) -> None:
    """Name steps that the scaler skips because gradients overflowed, and note the loss scale."""
    was_skipped = guarded("skipped step", _was_skipped, instead=False)

    def wrap_step(original: Function) -> Function:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            span = seams.begin_optimizer(id(optimizer))
            try:
                result = original(self, optimizer, *args, **kwargs)
            except BaseException as error:
                seams.end(span, type(error).__name__)
                raise
            if was_skipped(self):
                seams.name_skipped(span)
            seams.end(span)
            return result

        return step

    scaler = paddle.amp.GradScaler
    for name in ("step", "minimize"):
        patches.replace(scaler, name, wrap_step)
    for name in ("minimize", "update", "scale"):
        hook_scale(patches, scaler, name, scale_noter(seams, _host_scale))


def _was_skipped(scaler: Any) -> bool:
    """Return true if the scaler skipped the last step, by what it read from the device itself."""
    if not scaler.is_enable():
        return False
    state = vars(scaler)
    found = state.get("_cache_found_inf", state.get("_cache_founf_inf"))  # misspelt in Paddle 2.6
    return found is True


def _host_scale(scaler: Any) -> float | None:
    """Return the scale if the host has it; reading it from a device would wait."""
    scale = vars(scaler)["_scale"]
    return float(scale.item()) if scale is not None and scale.place.is_cpu_place() else None
