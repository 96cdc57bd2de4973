"""CUDA events of PyTorch, as profkit's device timer takes them."""

from __future__ import annotations

from typing import Any

import torch

from profkit.clock import Clock
from profkit.instrument.frameworks.shared import TimingEvent, reach_event
from profkit.instrument.rows import Event

MOST_STREAMS = 64
"""Maximum number of streams that are known; a job may make new ones forever."""


def on_device() -> bool:
    """Return true if this process trains on a CUDA device."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()


class CurrentStream:
    """The current stream of the calling thread, as torch's object.

    `torch.cuda.current_stream` makes a new object each time, which takes three times as long as
    to record an event. A stream is known again here by its device and its handle.
    """

    def __init__(self) -> None:
        private: Any = torch._C  # noqa: SLF001  # neither function has a public name
        self._device = getattr(private, "_cuda_getDevice", None)
        self._handle = getattr(private, "_cuda_getCurrentRawStream", None)
        self._known: dict[tuple[int, int], Any] = {}

    def get(self) -> Any:
        """Return the stream, or `None` if this torch does not provide its handle."""
        if self._device is None or self._handle is None:
            return None
        device = self._device()
        key = device, self._handle(device)
        stream = self._known.get(key)
        if stream is None:
            if len(self._known) >= MOST_STREAMS:
                self._known.clear()
            stream = self._known[key] = torch.cuda.current_stream()
        return stream

    def used(self) -> list[Any]:
        """Return the known streams of torch, which lives as long as they do.

        A stream that another library made may be destroyed. torch marks its own with the last bit.
        """
        streams = list(self._known.values())
        return [stream for stream in streams if not stream.stream_id or stream.stream_id & 1]


class StreamEvent(TimingEvent):
    """An event of torch, recorded on a stream that is known."""

    __slots__ = ("_streams",)

    def __init__(self, cuda: Any, streams: CurrentStream) -> None:
        self.cuda = cuda
        self._streams = streams

    def record(self) -> None:
        self.cuda.record(self._streams.get())


class CudaDevice:
    """The current CUDA device of this process."""

    def __init__(self) -> None:
        self._idle_stream = torch.cuda.Stream()
        self._streams = CurrentStream()
        self.is_capturing = torch.cuda.is_current_stream_capturing

    def make_event(self) -> TimingEvent:
        return StreamEvent(torch.cuda.Event(enable_timing=True), self._streams)

    def mark_streams(self) -> list[Event]:
        events: list[Event] = []
        for stream in self._streams.used():
            torch.cuda.set_stream(stream)  # also the thread's device, so that none is opened
            if torch.cuda.is_current_stream_capturing():
                return []
            event = self.make_event()
            event.cuda.record(stream)
            events.append(event)
        return events

    def reach_idle_event(self, clock: Clock) -> tuple[Event, int, int] | None:
        # To select the stream for this thread and to restore the previous one would open a context
        # on the first GPU, which is the thread's own, in addition to that of the rank's GPU.
        event = self.make_event()
        return reach_event(event, lambda: event.cuda.record(self._idle_stream), clock)
