"""CUDA events of PyTorch, as profkit's device timer takes them."""

from __future__ import annotations

import torch

from profkit.clock import Clock
from profkit.instrument.frameworks.shared import TimingEvent, reach_event
from profkit.instrument.rows import Event


def on_device() -> bool:
    """Return true if this process trains on a CUDA device."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()


class CudaDevice:
    """The current CUDA device of this process."""

    def __init__(self) -> None:
        self._idle_stream = torch.cuda.Stream()

    def make_event(self) -> TimingEvent:
        return TimingEvent(torch.cuda.Event(enable_timing=True))

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        event = self.make_event()

        def record() -> None:
            with torch.cuda.stream(self._idle_stream):
                event.record()

        return reach_event(event, record, clock)
