"""PaddlePaddle's optimizers, and the gradient scaler that decides whether they step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.paddlepaddle.calls import Function, is_traced, timed
from profkit.instrument.guard import Patches, guarded


def hook_optimizers(patches: Patches, seams: Seams) -> None:
    """Every optimizer's `step` and `minimize`, of classes that are defined later too. One that calls another's counts once."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_traced():
                return original(self, *args, **kwargs)
            return timed(seams, seams.begin_optimizer(id(self)), original, self, *args, **kwargs)

        return step

    def hook(optimizer: type) -> None:
        for name in ("step", "minimize"):
            if name in vars(optimizer):
                patches.replace(optimizer, name, wrap)

    base = paddle.optimizer.Optimizer
    for optimizer in dict.fromkeys((base, *_subclasses(base))):
        hook(optimizer)
    _hook_new_subclasses(patches, base, guarded("new optimizer", hook, None))


def _subclasses(base: type[Any]) -> Iterator[type]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _hook_new_subclasses(patches: Patches, base: Any, hook: Callable[[type], None]) -> None:
    def wrap(original: Function) -> Any:
        def init_subclass(subclass: type, /, **kwargs: Any) -> None:
            super(base, subclass).__init_subclass__(**kwargs)
            hook(subclass)

        return classmethod(init_subclass)

    patches.replace(base, "__init_subclass__", wrap)


def hook_scaler(patches: Patches, seams: Seams) -> None:
    """The scaler decides whether the optimizer steps: it does not where gradients overflowed."""
    was_skipped = guarded("skipped step", _was_skipped, instead=False)
    host_scale = guarded("loss scale", _host_scale, None)

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

    def wrap_scale(original: Function) -> Function:
        @functools.wraps(original)
        def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            seams.note_scale(host_scale(self))
            return result

        return scale

    scaler = paddle.amp.GradScaler
    for name, wrap in (
        ("step", wrap_step),
        ("minimize", wrap_step),
        ("minimize", wrap_scale),
        ("update", wrap_scale),
        ("scale", wrap_scale),
    ):
        patches.replace(scaler, name, wrap)


def _was_skipped(scaler: Any) -> bool:
    """Whether the last step was left out, as the job itself has asked; a device that it has not asked is not asked."""
    found = vars(scaler)
    return (
        bool(scaler.is_enable())
        and found.get("_cache_found_inf", found.get("_cache_founf_inf")) is True
    )  # misspelt in Paddle 2.6


def _host_scale(scaler: Any) -> float | None:
    """The scale where the host has it; on a device it stays unknown, for reading it would wait."""
    scale = vars(scaler)["_scale"]
    return float(scale.item()) if scale is not None and scale.place.is_cpu_place() else None
