"""A simulated accelerator: streams that run behind the host, events, copies, and captures.

Semantics and their sources:

- Work on one stream runs in the order of its launches, and the host does not wait for it (CUDA C++
  Programming Guide, "Asynchronous Concurrent Execution").
- A copy from pageable memory returns after the data has left the host; one from pinned memory with
  `non_blocking=True` returns at once (CUDA Runtime API, "API synchronization behavior").
- An event is reached when all work before it on its stream is done. `query` never waits.
  `elapsed_time` is a float of milliseconds, and raises if one of the events is not reached yet
  (CUDA Runtime API, cudaEventElapsedTime). A float of some seconds resolves about 1 us.
- While a stream captures, its work is recorded and not run. A query of an event that was recorded
  there fails. In the mode `global` any query, also from another thread, fails and invalidates the
  capture (CUDA Programming Guide, "Prohibited and Unhandled Operations"; pytorch PRs 104487,
  104555, 105182 and 148594, which keep NCCL's watchdog from doing it).
- With `CUDA_DEVICE_MAX_CONNECTIONS=1` all streams share one hardware queue. Work leaves it in the
  order of the launches, so an idle stream waits until the work launched before on the others has
  begun (CUDA C++ Programming Guide, "CUDA Environment Variables"; Megatron-LM relies on it). A wait
  for an event is work, too: it holds up the queue. `connections` is that variable.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.accelerator.hosts import BEGIN_NS, Host
from tests.accelerator.moments import Moment

LAUNCH_NS = 5_000
"""The time that a launch takes of the host."""

MOST_PENDING = 1_024
"""Launches that the driver queues before the next one blocks the host, as has been observed.

See "CUDA launch queue" in NVIDIA's forum; the number is not documented and depends on the driver.
"""

QUERY_NS = 1_000
"""The time of one question to the driver; without it, polling would never end."""


class AcceleratorError(RuntimeError):
    """An error of the driver, as `torch.AcceleratorError`."""


@dataclass(frozen=True)
class Work:
    """One piece of work in a captured graph: its duration."""

    name: str
    duration_ns: int


class OutOfMemory(AcceleratorError):  # noqa: N818  # as torch.OutOfMemoryError
    """The allocator has no memory left; nothing was launched."""


@dataclass
class Memory:
    """The memory of a device, as the framework's allocator hands it out."""

    total_bytes: int = 80 << 30
    allocated_bytes: int = 0

    def allocate(self, size: int) -> None:
        """Take memory; the job gets an error if there is too little, as from torch's allocator."""
        if self.allocated_bytes + size > self.total_bytes:
            raise OutOfMemory(f"CUDA out of memory. Tried to allocate {size:,} bytes.")
        self.allocated_bytes += size

    def free_all(self) -> None:
        self.allocated_bytes = 0


@dataclass
class Capture:
    """A capture that is going on, with the work recorded so far."""

    stream: Stream
    mode: str
    work: list[Work] = field(default_factory=list)
    is_invalid: bool = False


@dataclass
class Device:
    """One accelerator. Its clock runs `drift` faster than the host's, and began elsewhere."""

    host: Host
    number: int = 0
    drift: float = 0.0
    connections: int = 8
    launch_ns: int = LAUNCH_NS
    most_pending: int = MOST_PENDING
    idle_delay_ns: int = 0
    """The time in which a stream without work reaches an event: long on a device that is shared."""
    event_fault: Callable[[Event, str], None] | None = None
    """Called before each operation on an event, with its name; may raise what the driver would."""
    end_of_backward: Callable[[], None] = lambda: None
    """Called when the last gradient is there: DDP's reducer has the stream wait for its buckets."""

    def __post_init__(self) -> None:
        self.memory = Memory()
        self.default_stream = Stream(self)
        self.stack = [self.default_stream]
        self.writer_stack = [self.default_stream]
        self.last_launched = Moment()
        self.last_begun = Moment()
        self.capture: Capture | None = None
        self._pending: deque[Moment] = deque()

    @property
    def streams_in_use(self) -> list[Stream]:
        """The calling thread's current streams, the innermost last."""
        return self.writer_stack if self.host.in_writer else self.stack

    @property
    def stream(self) -> Stream:
        return self.streams_in_use[-1]

    def clock_ms(self, ns: int) -> float:
        """Return the device's own clock at a time of the host's."""
        return ((ns - BEGIN_NS) * (1 + self.drift) + 5e9) / 1e6

    def launch(self, duration_ns: int, name: str = "kernel") -> Moment:
        """Launch a kernel on the current stream; return the moment at which it ends."""
        self.host.work(self.launch_ns)
        if len(self._pending) >= self.most_pending:
            oldest = self._pending.popleft()
            if not self.host.has_passed(oldest):
                self.host.wait_for(oldest)
        done = self.stream.put(duration_ns, name)
        self._pending.append(done)
        return done

    def copy(self, duration_ns: int, *, waits: bool) -> None:
        """Copy between host and device; pageable memory and results make the host wait."""
        done = self.launch(duration_ns, "copy")
        if waits:
            self.forbid_in_capture("a copy that waits")
            self.host.wait_for(done)

    def synchronize(self) -> None:
        """Wait for all work that was launched."""
        self.forbid_in_capture("synchronize")
        self.host.wait_for(self.last_launched)

    def synchronize_stream(self) -> None:
        """Wait for the work of the current stream, as reading a value of the device does."""
        self.forbid_in_capture("synchronize")
        self.host.wait_for(self.stream.tail)

    def forbid_in_capture(self, what: str) -> None:
        """Fail and invalidate the capture if there is one in the mode `global`.

        In other modes only the capturing thread is concerned, and the writer's is another one.
        """
        capture = self.capture
        if capture is None or (self.host.in_writer and capture.mode != "global"):
            return
        capture.is_invalid = True
        raise AcceleratorError(
            f"CUDA error: operation not permitted when stream is capturing: {what}"
        )

    def begin_capture(self, mode: str = "global") -> None:
        if self.capture is not None:
            raise AcceleratorError("CUDA error: the stream is already capturing")
        self.capture = Capture(self.stream, mode)

    def end_capture(self) -> tuple[Work, ...]:
        """Return the captured work; raise if something has invalidated the capture."""
        capture, self.capture = self.capture, None
        if capture is None or capture.is_invalid:
            raise AcceleratorError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        return tuple(capture.work)

    def replay(self, work: tuple[Work, ...]) -> None:
        """Launch a graph: one call of the host for all of its work."""
        self.host.work(self.launch_ns)
        for each in work:
            self.stream.put(each.duration_ns, each.name)


class Stream:
    """A queue of work. `tail` is the moment at which the last of it ends."""

    stream_id = 1
    """Of a framework's own stream, the last bit is set."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tail = Moment()
        self.is_idle = True
        """True until the stream gets work."""

    @property
    def captures(self) -> bool:
        capture = self.device.capture
        return capture is not None and capture.stream is self

    def put(self, duration_ns: int, name: str = "kernel") -> Moment:
        """Append work that the host has launched now."""
        device = self.device
        if self.captures and device.capture is not None:
            device.capture.work.append(Work(name, duration_ns))
            return self.tail
        return self.finish(Moment([self.reach()], add=duration_ns))

    def finish(self, end: Moment) -> Moment:
        """Make this the moment at which the stream's work ends."""
        self.tail = end
        self.is_idle = False
        self.device.last_launched = Moment([self.device.last_launched, end])
        return end

    def reach(self) -> Moment:
        """Return the moment at which the stream reaches this point, and the next work begins."""
        device = self.device
        before = [self.tail]
        if device.connections == 1:
            before.append(device.last_begun)
        delay_ns = device.idle_delay_ns if self.is_idle else 0
        device.last_begun = Moment(before, floor=device.host(), add=delay_ns)
        return device.last_begun

    def wait(self, moment: Moment) -> None:
        """Wait for another stream's work, without the host."""
        self.finish(Moment([self.tail, moment]))


class Event:
    """A point on a stream. Until it is recorded, it counts as reached."""

    def __init__(self, device: Device, *, timed: bool = True) -> None:
        self.device = device
        self._meet_fault("create")
        self.timed = timed
        self.reached: Moment | None = None
        self.is_captured = False

    def record(self, stream: Stream | None = None) -> None:
        self._meet_fault("record")
        stream = stream or self.device.stream
        self.is_captured = stream.captures
        self.reached = stream.reach()

    def query(self) -> bool:
        """Return true if the device has reached the event."""
        self._meet_fault("query")
        self.device.forbid_in_capture("query of an event")
        self._check_captured()
        self.device.host.work(QUERY_NS)
        return self.reached is None or self.device.host.has_passed(self.reached)

    def synchronize(self) -> None:
        self.device.forbid_in_capture("wait for an event")
        self._check_captured()
        if self.reached is not None:
            self.device.host.wait_for(self.reached)

    def elapsed_time(self, later: Event) -> float:
        """Return the milliseconds until another event, as the driver's float."""
        self._meet_fault("elapsed_time")
        ends = []
        for event in (self, later):
            event._check_captured()
            if event.reached is None or not event.timed:
                raise AcceleratorError("CUDA error: invalid resource handle")
            if event.reached.ns is None or event.reached.ns > self.device.host():
                raise AcceleratorError("CUDA error: device not ready")
            ends.append(event.reached.ns)
        first, second = ends
        elapsed = self.device.clock_ms(second) - self.device.clock_ms(first)
        single: float = struct.unpack("f", struct.pack("f", elapsed))[0]
        return single

    def _check_captured(self) -> None:
        if self.is_captured:
            raise AcceleratorError("CUDA error: the event was last recorded in a capturing stream")

    def _meet_fault(self, operation: str) -> None:
        if self.device.event_fault is not None:
            self.device.event_fault(self, operation)
