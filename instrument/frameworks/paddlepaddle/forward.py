"""Paddle's copies of a batch to the device, and the calls of layers."""

from __future__ import annotations

import functools
from typing import Any

import paddle
from paddle.base import core, framework
from paddle.jit.sot.psdb import in_sot

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.frameworks.shared import Function, Nesting, timed
from profkit.instrument.guard import Patches, guarded


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
