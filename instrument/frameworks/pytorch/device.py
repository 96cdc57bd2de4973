"""CUDA events of PyTorch, as profkit's device timer takes them."""

from __future__ import annotations

from collections.abc import Callable
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


class Streams:
    """The streams of torch that the process has used.

    `torch.cuda.current_stream` makes a new object each time, which takes three times as long as
    to record an event. A stream is known again here by its device and its handle.
    """

    def __init__(
        self,
        device: Callable[[], int],
        handle: Callable[[int], int],
        current: Callable[[], Any],
    ) -> None:
        self.device = device
        """Returns the current device of the calling thread."""
        self.handle = handle
        """Returns the handle of a device's current stream."""
        self._current = current
        self.known: dict[tuple[int, int], Any] = {}

    def find(self) -> Any:
        """Return the current stream, which is known from now on."""
        device = self.device()
        if len(self.known) >= MOST_STREAMS:
            self.known.clear()
        stream = self.known[device, self.handle(device)] = self._current()
        return stream

    def used(self) -> list[Any]:
        """Return the known streams of torch, which lives as long as they do.

        A stream that another library made may be destroyed. torch marks its own with the last bit.
        """
        streams = list(self.known.values())
        return [stream for stream in streams if not stream.stream_id or stream.stream_id & 1]


class StreamEvent(TimingEvent):
    """An event of torch, recorded on a stream that is known."""

    __slots__ = ("_streams", "stream")

    def __init__(self, cuda: Any, streams: Streams) -> None:
        self.cuda = cuda
        self._streams = streams
        self.stream: Any = None
        """The stream on which it was recorded last."""

    def record(self) -> None:
        # In the job's loop, each function of ours has left the processor's caches, so this calls
        # none: a mark took 7 to 14 us there, and 5 us in a loop of marks.
        streams = self._streams
        device = streams.device()
        stream = streams.known.get((device, streams.handle(device)))
        if stream is None:
            stream = streams.find()
        self.stream = stream
        self.cuda.record(stream)


def find_streams() -> Streams | None:
    """Return the streams; `None` if this torch does not tell a stream's handle."""
    private: Any = torch._C  # noqa: SLF001  # neither function has a public name
    device = getattr(private, "_cuda_getDevice", None)
    handle = getattr(private, "_cuda_getCurrentRawStream", None)
    if device is None or handle is None:
        return None
    return Streams(device, handle, torch.cuda.current_stream)


class CudaDevice:
    """The current CUDA device of this process."""

    def __init__(self) -> None:
        self._idle_stream = torch.cuda.Stream()
        self._streams = find_streams()
        private: Any = torch._C  # noqa: SLF001  # the public function only calls this one
        capturing = getattr(private, "_cuda_isCurrentStreamCapturing", None)
        self.is_capturing = capturing or torch.cuda.is_current_stream_capturing

    def make_event(self) -> TimingEvent:
        event = torch.cuda.Event(enable_timing=True)
        streams = self._streams
        return TimingEvent(event) if streams is None else StreamEvent(event, streams)

    def mark_streams(self) -> list[Event]:
        events: list[Event] = []
        for stream in self._streams.used() if self._streams else ():
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
