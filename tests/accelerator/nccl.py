"""NCCL between simulated ranks: collectives that meet on the devices.

Semantics and their sources:

- A call enqueues the collective and returns. It runs on the communicator's own stream, in the order
  of the calls, after the work that the calling stream held (torch `ProcessGroupNCCL.cpp`,
  `syncStream`).
- It occupies that stream until every rank has reached it and the data has moved: an all-reduce
  cannot end before its last rank has begun (NCCL User Guide, "Collective Operations").
- `Work.wait` makes the current stream wait, not the host. The future of a `Work` is complete as
  soon as the collective is enqueued. Its callbacks run at once, on the thread that adds them, on a
  stream of their own that waits for the collective (pytorch PR 48561).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tests.accelerator.devices import Device, Stream
from tests.accelerator.moments import Moment


class Link:
    """The time of one all-reduce: a latency, and its bytes at a bandwidth."""

    def __init__(self, *, latency_ns: int = 0, bytes_per_s: float = 1e9) -> None:
        self.latency_ns = latency_ns
        self.bytes_per_s = bytes_per_s

    def ns(self, size: int) -> int:
        return self.latency_ns + round(size * 1e9 / self.bytes_per_s)


class Communicator:
    """The collectives of one group, matched by their order on each rank."""

    def __init__(self, size: int, link: Link) -> None:
        self.size = size
        self.link = link
        self._ends: dict[int, Moment] = {}

    def end_of(self, number: int, size: int) -> Moment:
        """Return the end of the collective of this number; all ranks name the same size."""
        if number not in self._ends:
            self._ends[number] = Moment(expected=self.size, add=self.link.ns(size))
        return self._ends[number]


class Channel:
    """One rank's side of a communicator: its stream, and the number of its next collective."""

    def __init__(self, device: Device, communicator: Communicator) -> None:
        self.device = device
        self.communicator = communicator
        self.stream = Stream(device)
        self._callbacks = Stream(device)
        self._count = 0
        self.unjoined: list[Moment] = []
        """Ends of the collectives for which no stream waits yet."""

    def enqueue(self, size: int) -> Moment:
        """Enqueue a collective after the work of the current stream; return its end."""
        self.device.host.work(self.device.launch_ns)
        self.stream.wait(self.device.stream.reach())
        end = self.communicator.end_of(self._count, size)
        self._count += 1
        end.arrive(self.stream.reach())
        self.unjoined.append(end)
        return self.stream.finish(end)

    def join(self) -> None:
        """Make the current stream wait for all collectives, as the end of DDP's backward does."""
        ends, self.unjoined = self.unjoined, []
        for end in ends:
            self.device.stream.wait(end)

    def call_back(self, end: Moment, then: Callable[[], object]) -> None:
        """Run a callback of a collective's future, now, on a stream that waits for its end."""
        self._callbacks.wait(end)
        streams = self.device.streams_in_use
        streams.append(self._callbacks)
        try:
            then()
        finally:
            streams.pop()


def communicators(sizes: int, link: Link) -> defaultdict[str, Communicator]:
    """Return the communicators of a job by their name, each made when it is first used."""
    return defaultdict(lambda: Communicator(sizes, link))
