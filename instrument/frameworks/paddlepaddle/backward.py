"""Paddle's backward, and the loss that it begins with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from paddle.base import core

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.shared import Function, Nesting
from profkit.instrument.guard import Patches, guarded


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
