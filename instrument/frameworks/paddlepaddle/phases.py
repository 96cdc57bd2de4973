"""The phases of a step in Paddle: the wait for a batch, its copy, forward, and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core, framework
from paddle.io.dataloader.dataloader_iter import (
    _DataLoaderIterMultiProcess,
    _DataLoaderIterSingleProcess,
)
from paddle.jit.sot.psdb import in_sot

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.frameworks.shared import (
    Function,
    Nesting,
    end_with_error,
    hook_iteration,
    timed,
)
from profkit.instrument.guard import Patches, guarded


def hook_loader(patches: Patches, seams: Seams) -> None:
    """Count the wait for a batch as data, with the start of the workers.

    Calling a loader iterates it, too.
    """

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def next_batch(self: Any) -> Any:
            span = seams.begin_batch()
            try:
                batch = original(self)
            except BaseException as error:
                end_with_error(seams, span, error)
                raise
            seams.end_batch(span, batch)
            return batch

        return next_batch

    for iterator in (_DataLoaderIterSingleProcess, _DataLoaderIterMultiProcess):
        patches.replace(iterator, "__next__", wrap)
    hook_iteration(patches, seams, paddle.io.DataLoader)


def hook_copies(patches: Patches, seams: Seams) -> None:
    """Count `Tensor.to` and `Tensor.cuda` between a batch's arrival and its use as its copy."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            span = None if is_traced() else seams.begin_copy()
            if span is None:
                return original(self, *args, **kwargs)
            return timed(seams, span, original, self, *args, **kwargs)

        return copy

    for name in ("to", "cuda"):
        patches.replace(paddle.Tensor, name, wrap)


def hook_layers(patches: Patches, seams: Seams) -> None:
    """Count the outermost call of a layer as a forward.

    Layers inside it cost two flags, and traced code costs nothing.
    """
    nesting = Nesting()
    autocasts = guarded("autocast", _autocasts, instead=False)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if in_sot() or nesting.inside or is_traced():
                return original(self, *args, **kwargs)
            nesting.inside = True
            try:
                if (enabled := autocasts()) is not seams.autocast:
                    seams.note_autocast(enabled)
                span = seams.begin_forward(with_gradients=paddle.is_grad_enabled())
                return timed(seams, span, original, self, *args, **kwargs)
            finally:
                nesting.inside = False

        return call

    patches.replace(paddle.nn.Layer, "__call__", wrap)


def _autocasts() -> bool:
    """Return true if layers are called in mixed precision."""
    tracer = framework._dygraph_tracer()  # noqa: SLF001  # it has no public name
    return tracer is not None and tracer._amp_level != core.AmpLevel.O0  # noqa: SLF001  # as above


def hook_backward(patches: Patches, seams: Seams, done: Callable[[], None]) -> None:
    """Time `run_backward`, which all of Paddle's ways to a backward call.

    Recomputation calls it, too, inside another backward.
    """
    nesting = Nesting()
    read_loss = guarded("loss", _read_loss, None)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if nesting.inside:
                return original(tensors, *args, **kwargs)
            nesting.inside = True
            loss = read_loss(tensors) if seams.recorder.recording else None
            span = seams.begin_backward("paddle", loss)
            try:
                result = original(tensors, *args, **kwargs)
            except BaseException as error:
                seams.end(span, type(error).__name__)
                raise
            finally:
                nesting.inside = False
            done()
            seams.end(span)
            return result

        return run_backward

    patches.replace(core.eager, "run_backward", wrap)


def _read_loss(tensors: Any) -> float | None:
    """Return the loss if the host has it; reading it from a device would wait."""
    if len(tensors) != 1 or tensors[0].size != 1 or not tensors[0].place.is_cpu_place():
        return None
    return float(tensors[0].item())
