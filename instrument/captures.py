"""Keeps profkit away from the device while the job captures a CUDA graph.

During a capture, CUDA forbids calls that profkit needs. An event that is recorded on the capturing
stream becomes part of the graph. An event that is asked for from another thread makes the job's
capture fail, if the capture is of the kind `global`, which is the default.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from profkit.instrument.guard import Patches, guarded

_RELAXED = 2
"""`CU_STREAM_CAPTURE_MODE_RELAXED`: the thread's calls do not disturb other threads' captures."""


class Captures:
    """Counts the captures that are open in this process.

    Device calls of profkit's threads hold `lock`. So a capture begins when such a call has
    returned, and no call begins during a capture.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0
        self.have_been = False
        """True once there was a capture."""

    def begin(self) -> None:
        with self.lock:
            self.open += 1
            self.have_been = True

    def end(self) -> None:
        with self.lock:
            self.open = max(self.open - 1, 0)

    def watch(self, patches: Patches, graph: type) -> None:
        """Count the captures that a framework's class of graphs begins and ends."""
        begin = guarded("the begin of a capture", self.begin, None)
        end = guarded("the end of a capture", self.end, None)

        def wrap_begin(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def capture_begin(*args: Any, **kwargs: Any) -> Any:
                begin()
                try:
                    return original(*args, **kwargs)
                except BaseException:
                    end()
                    raise

            return capture_begin

        def wrap_end(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def capture_end(*args: Any, **kwargs: Any) -> Any:
                try:
                    return original(*args, **kwargs)
                finally:
                    end()

            return capture_end

        patches.replace(graph, "capture_begin", wrap_begin)
        patches.replace(graph, "capture_end", wrap_end)


CAPTURES = Captures()


def relax_this_thread() -> bool:
    """Keep this thread's device calls from disturbing captures that nobody has reported.

    A library can begin a capture without its framework. The driver remembers the mode for the
    calling thread alone, and needs no context for it. Returns false without such a driver.
    """
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return False
    mode = ctypes.c_int(_RELAXED)
    return bool(exchange(ctypes.byref(mode)) == 0)
