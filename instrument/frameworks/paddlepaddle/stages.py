"""The pipelines of `paddle.distributed.fleet`: the forward of each microbatch.

These methods are private parts of Paddle. In a version that has others, each call of a layer is a
forward.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Final

import paddle

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.paddlepaddle.phases import LayerCalls
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.frameworks.shared import Function, timed
from profkit.instrument.guard import Patches, guarded

_PIPELINES: Final = ("PipelineParallel", "PipelineParallelWithInterleave")


class Microbatches(threading.local):
    """The microbatches of the step that this thread's pipeline trains."""

    forwards = 0


def hook_pipelines(patches: Patches, seams: Seams, calls: LayerCalls) -> None:
    """Make one forward of each microbatch, of which the first one is the loop's.

    Otherwise each layer would be a forward, and the number of those is that of batches.
    """
    parallel = getattr(paddle.distributed.fleet, "meta_parallel", None)
    done = Microbatches()
    begin = guarded("begin_forward", calls.begin, None)

    def wrap_train(original: Function) -> Function:
        @functools.wraps(original)
        def train_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
            done.forwards = 0
            return original(self, *args, **kwargs)

        return train_batch

    def wrap_forward(original: Function) -> Function:
        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if calls.nesting.inside or is_traced():
                return original(self, *args, **kwargs)
            calls.nesting.inside = True
            try:
                span = begin(self, is_same_batch=done.forwards > 0)
                done.forwards += 1
                return timed(seams, span, original, self, *args, **kwargs)
            finally:
                calls.nesting.inside = False

        return forward

    for name in _PIPELINES:
        kind = getattr(parallel, name, None)
        for method, wrap in (("train_batch", wrap_train), ("_forward_step", wrap_forward)):
            if kind is not None and method in vars(kind):
                patches.replace(kind, method, wrap)
