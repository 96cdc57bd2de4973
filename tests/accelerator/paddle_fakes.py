"""Stand-ins for Paddle's CUDA names, on a simulated accelerator.

Semantics and their sources:

- `paddle.device.cuda.Event` has `elapsed_time` from 3.0 on; in 2.6 it has none (Paddle's API
  documentation of both versions). `timed=False` makes that of 2.6.
- The reducer starts the all-reduce of a group when its last gradient is there, in the order of
  the groups, on NCCL's own stream. When the last gradient of all is there, it has the calculation
  stream wait for all groups (`EagerReducer::MarkVarReady`, `FinalizeBackward` in Paddle's
  `fluid/distributed/collective/reducer.cc`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle
from paddle.base import core
from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess as _Batches

from tests.accelerator.devices import Device, Event, Stream
from tests.accelerator.nccl import Channel
from tests.accelerator.replacing import put


class SimulatedPaddle:
    """Replaces Paddle's names for CUDA. `device` is that of the rank whose turn it is."""

    def __init__(self, device: Callable[[], Device], *, timed: bool = True) -> None:
        self.device = device
        self.copy_ns = 0
        self.making_ns = 0
        """The time that the loop waits for each batch."""
        self._timed = timed

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the names, until the block ends."""
        device = self.device
        original: Any = vars(_Batches)["__next__"]

        def copy(tensor: Any, *args: Any, **given: Any) -> Any:
            device().copy(self.copy_ns, waits=not getattr(tensor, "is_pinned_here", False))
            return tensor

        def next_batch(own: Any) -> Any:
            """Have the loop wait: Paddle's loader makes batches on a thread of its own."""
            batch = original(own)
            device().host.work(self.making_ns)
            return batch

        class UntimedEvent:
            """An event of Paddle 2.6, which knows no times."""

            def __init__(self, enable_timing: bool = False, **options: Any) -> None:
                self.event = Event(device(), timed=enable_timing)
                self.record, self.query = self.event.record, self.event.query

        class TimedEvent(UntimedEvent):
            def elapsed_time(self, later: TimedEvent) -> float:
                return self.event.elapsed_time(later.event)

        names: list[tuple[Any, str, Any]] = [
            (paddle.device, "is_compiled_with_cuda", lambda: True),
            (paddle.device, "get_device", lambda: f"gpu:{device().number}"),
            (paddle.device.cuda, "Event", TimedEvent if self._timed else UntimedEvent),
            (paddle.device.cuda, "Stream", lambda *_, **__: Stream(device())),
            (paddle.Tensor, "cuda", copy),
            (_Batches, "__next__", next_batch),
            (core, "EagerReducer", Reducer),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, value in names:
                put(stack, owner, name, value)
            yield


class NcclGroup:
    """The process group that a reducer is made with."""

    def __init__(self, size: int, channel: Channel) -> None:
        self.channel = channel
        self._size = size

    def name(self) -> str:
        return "NCCL"

    def size(self) -> int:
        return self._size


class Reducer:
    """Paddle's reducer: one all-reduce per group of parameters."""

    def __init__(
        self,
        parameters: Sequence[Any],
        groups: Sequence[Sequence[int]],
        is_sparse: Sequence[bool],
        process_group: NcclGroup,
        *limits: Any,
    ) -> None:
        self._groups = groups
        self._channel = process_group.channel
        self._bytes = [4 * int(parameter.size) for parameter in parameters]
        self._waiting: list[set[int]] = []
        self._next = 0
        for number, parameter in enumerate(parameters):
            parameter._register_backward_hook(self._marker(number))

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        self._waiting = [set(group) for group in self._groups]
        self._next = 0

    def _marker(self, number: int) -> Callable[[], None]:
        def mark() -> None:
            if not self._waiting:
                return
            for group in self._waiting:
                group.discard(number)
            while self._next < len(self._groups) and not self._waiting[self._next]:
                members = self._groups[self._next]
                self._channel.enqueue(sum(self._bytes[member] for member in members))
                self._next += 1
            if self._next == len(self._groups):
                self._waiting = []
                self._channel.join()

        return mark
