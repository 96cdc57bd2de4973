"""CUDA events of PaddlePaddle, as profkit's device timer takes them."""

from __future__ import annotations

import time

import paddle

from profkit.clock import Clock, now_ns
from profkit.instrument.frameworks.shared import TimingEvent, reach_event
from profkit.instrument.rows import Event

PROBES, PROBE_SECONDS = 3, 0.001
"""The first probe may exceed the patience: it creates the device's context."""


def on_device() -> bool:
    """Return true if this process trains on a CUDA device."""
    if not paddle.device.is_compiled_with_cuda():
        return False
    return str(paddle.device.get_device()).startswith("gpu")


def open_device() -> CudaDevice | None:
    """Return the device that times phases; `None` if Paddle's events hold no time, as in 2.6."""
    if not on_device() or not hasattr(paddle.device.cuda.Event, "elapsed_time"):
        return None
    device = CudaDevice()
    for _ in range(PROBES):
        if device.counts_time():
            return device
    return None


class CudaDevice:
    """The current CUDA device of this process.

    Paddle makes an event on the device of the thread that asks, and the writer's thread has not
    chosen one. So the two events that take turns as the anchor are made here, by the thread that
    trains.
    """

    def __init__(self) -> None:
        self._idle_stream = paddle.device.cuda.Stream()
        self._anchor, self._next_anchor = self.make_event(), self.make_event()

    def make_event(self) -> TimingEvent:
        return TimingEvent(paddle.device.cuda.Event(enable_timing=True))

    def is_capturing(self) -> bool:
        return bool(paddle.base.core.is_cuda_graph_capturing())

    def mark_streams(self) -> list[Event]:
        return []  # Paddle's events belong to the device of the thread that makes them

    def counts_time(self) -> bool:
        """Return true if the device counts time between two events. This waits for the device."""
        first = self.reach_idle_event(now_ns)
        time.sleep(PROBE_SECONDS)
        second = self.reach_idle_event(now_ns)
        return first is not None and second is not None and second[0].ns_since(first[0]) > 0

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        event = self._next_anchor
        reached = reach_event(event, lambda: event.cuda.record(self._idle_stream), clock)
        if reached is not None:
            self._anchor, self._next_anchor = event, self._anchor
        return reached
