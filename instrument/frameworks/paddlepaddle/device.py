"""CUDA events of PaddlePaddle, as profkit's device timer takes them."""

from __future__ import annotations

import time
from typing import Any

import paddle

from profkit.clock import Clock, now_ns
from profkit.instrument.rows import Event

PATIENCE_NS = 2_000_000
"""How long the writer's thread asks for an event on an idle stream before it tries again later."""

PROBES, PROBE_SECONDS = 3, 0.001
"""The first one may take longer than the patience: the device's context is made then."""


def on_device() -> bool:
    """Whether this process trains on a CUDA device."""
    return paddle.device.is_compiled_with_cuda() and str(paddle.device.get_device()).startswith(
        "gpu"
    )


def open_device() -> CudaDevice | None:
    """The device that times phases; `None` without one, and where Paddle's events hold no time, as in 2.6."""
    if not on_device() or not hasattr(paddle.device.cuda.Event, "elapsed_time"):
        return None
    device = CudaDevice()
    return device if device.has_time() else None


class CudaEvent:
    """A timing event; recorded on the current stream of the device that trains."""

    __slots__ = ("cuda",)

    def __init__(self) -> None:
        self.cuda: Any = paddle.device.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self.cuda.record()

    def done(self) -> bool:
        return bool(self.cuda.query())

    def ns_since(self, earlier: Any) -> float:
        return float(earlier.cuda.elapsed_time(self.cuda)) * 1e6


class CudaDevice:
    """The current CUDA device of this process.

    Paddle makes an event on the device of the thread that asks, and the writer's thread has not chosen one. So the two
    events that take turns as the anchor are made here, by the thread that trains.
    """

    def __init__(self) -> None:
        self._idle_stream = paddle.device.cuda.Stream()
        self._anchor, self._next_anchor = CudaEvent(), CudaEvent()

    def make_event(self) -> Event:
        return CudaEvent()

    def has_time(self) -> bool:
        """Whether the device counts the time between two events on its idle stream. Waits for it, once."""
        return any(self._counts_time() for _ in range(PROBES))

    def _counts_time(self) -> bool:
        first = self.reach_idle_event(now_ns)
        time.sleep(PROBE_SECONDS)
        second = self.reach_idle_event(now_ns)
        return first is not None and second is not None and second[0].ns_since(first[0]) > 0

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        """Nothing else runs on the stream, so the device reaches the event at once; asked for, never waited for."""
        event = self._next_anchor
        before = clock()
        event.cuda.record(self._idle_stream)
        while not event.done():
            if clock() - before > PATIENCE_NS:
                return None
        after = clock()
        self._anchor, self._next_anchor = event, self._anchor
        return event, (before + after) // 2, after - before
