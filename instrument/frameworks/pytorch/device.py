"""CUDA events of PyTorch, as profkit's device timer takes them."""

from __future__ import annotations

from typing import Any

import torch

from profkit.clock import Clock
from profkit.instrument.rows import Event

PATIENCE_NS = 2_000_000
"""How long the writer's thread asks for an event on an idle stream before it tries again later."""


class CudaEvent:
    """A timing event; recorded on the current stream of the thread that calls."""

    __slots__ = ("cuda",)

    def __init__(self) -> None:
        self.cuda = torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self.cuda.record()

    def done(self) -> bool:
        return bool(self.cuda.query())

    def ns_since(self, earlier: Any) -> float:
        return float(earlier.cuda.elapsed_time(self.cuda)) * 1e6


class CudaDevice:
    """The current CUDA device of this process."""

    def __init__(self) -> None:
        self._idle_stream = torch.cuda.Stream()

    def make_event(self) -> Event:
        return CudaEvent()

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        """Nothing else runs on the stream, so the device reaches the event at once; asked for, never waited for."""
        event = CudaEvent()
        before = clock()
        with torch.cuda.stream(self._idle_stream):
            event.record()
        while not event.done():
            if clock() - before > PATIENCE_NS:
                return None
        after = clock()
        return event, (before + after) // 2, after - before
