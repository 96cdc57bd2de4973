"""The forward and the backward of a step in Paddle."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core, framework
from paddle.jit.sot.psdb import in_sot

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.paddlepaddle.identity import autocast_dtype
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.frameworks.shared import Function, Nesting, timed
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.models import TrainedModels
from profkit.instrument.rows import Opened


class LayerCalls:
    """The loop's calls of layers, also for hooks that see more than the call of a layer."""

    def __init__(self, seams: Seams) -> None:
        self.nesting = Nesting()
        models = TrainedModels(
            "paddle",
            lambda layer: layer.sublayers(include_self=True),
            lambda layer: (each for each in layer.parameters() if not each.stop_gradient),
            lambda tensor: tensor.inplace_version,
        )
        seams.tracker.models.append(models)
        self._seams = seams
        self.note_call = guarded("models", models.note_call, instead=False)
        self.autocasts = guarded("autocast", _autocasts, instead=False)

    def begin(self, layer: Any, *, is_same_batch: bool = False) -> Opened:
        """Begin a forward that calls this layer; `hook_layers` has the same, inlined.

        With `is_same_batch`, a forward with another part of the batch has been counted already.
        """
        seams = self._seams
        if (enabled := self.autocasts()) is not seams.autocast:
            seams.note_autocast(enabled, autocast_dtype)
        noted = self.note_call(layer, paddle.is_grad_enabled())
        if noted and is_same_batch:
            noted = False
        return seams.begin_forward(with_gradients=noted)


def hook_layers(patches: Patches, seams: Seams) -> LayerCalls:
    """Count the outermost call of a layer as a forward.

    Layers inside it cost two flags, and traced code costs nothing.
    """
    calls = LayerCalls(seams)
    nesting, note_call, autocasts = calls.nesting, calls.note_call, calls.autocasts
    original: Function = paddle.nn.Layer.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if in_sot() or nesting.inside or is_traced():
            return original(self, *args, **kwargs)
        nesting.inside = True
        try:
            if (enabled := autocasts()) is not seams.autocast:
                seams.note_autocast(enabled, autocast_dtype)
            span = seams.begin_forward(with_gradients=note_call(self, paddle.is_grad_enabled()))
            return timed(seams, span, original, self, *args, **kwargs)
        finally:
            nesting.inside = False

    patches.replace(paddle.nn.Layer, "__call__", lambda _: call)
    return calls


def _autocasts() -> bool:
    """Return true if layers are called in mixed precision."""
    tracer = framework._dygraph_tracer()  # noqa: SLF001  # it has no public name
    return tracer is not None and tracer._amp_level != core.AmpLevel.O0  # noqa: SLF001  # as above


def hook_backward(patches: Patches, seams: Seams, done: Callable[[], None]) -> None:
    """Time `run_backward`, which all of Paddle's ways to a backward call.

    Recomputation calls it, too, inside another backward.
    """
    nesting = Nesting()

    original: Function = core.eager.run_backward

    @functools.wraps(original)
    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if nesting.inside:
            return original(tensors, *args, **kwargs)
        nesting.inside = True
        loss = None
        try:
            # Only a loss that the host has is read: reading it from a device would wait.
            if seams.recorder.recording and len(tensors) == 1:
                (tensor,) = tensors
                # A pipeline has released the output of a stage, of which only the graph is left.
                is_there = tensor.size == 1 and tensor._is_initialized()  # noqa: SLF001  # Paddle's
                if is_there and tensor.place.is_cpu_place():
                    loss = float(tensor.item())
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("loss", failure)
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

    patches.replace(core.eager, "run_backward", lambda _: run_backward)
