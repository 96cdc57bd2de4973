"""What PaddlePaddle's seams share: a call that is timed, one that is only traced, one inside another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import paddle
from paddle.jit.sot.psdb import in_sot

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.rows import Followed

Function = Callable[..., Any]


class Nesting(threading.local):
    """Whether this thread is inside already."""

    inside = False


def is_traced() -> bool:
    """Whether this call builds a graph instead of running.

    `in_sot` is false when it is called, but `to_static` takes it as true while it reads our code, and reads no further:
    without it, each layer would break the graph.
    """
    return in_sot() or not paddle.in_dynamic_mode()


def timed(
    seams: Seams, span: Followed | int | None, function: Function, /, *args: Any, **kwargs: Any
) -> Any:
    """Call `function` inside an open region; its exception goes on, and its class is recorded."""
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        seams.end(span, type(error).__name__)
        raise
    seams.end(span)
    return result
