"""Process groups of simulated ranks, as `DistributedDataParallel` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.accelerator.moments import Moment
from tests.accelerator.nccl import Channel

_C10D: Any = torch._C._distributed_c10d


class NcclFuture(torch.futures.Future):  # type: ignore[type-arg]  # its value is what it was given
    """A future that is complete from the beginning, and calls back at once."""

    def __init__(self, value: Any, channel: Channel, end: Moment) -> None:
        super().__init__()
        self.set_result(value)
        self._channel = channel
        self._end = end

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._channel.call_back(self._end, lambda: callback(self))


class NcclWork(_C10D.Work):  # type: ignore[misc]  # untyped
    """A collective that was enqueued."""

    def __init__(self, value: Any, channel: Channel, end: Moment) -> None:
        super().__init__()
        self._channel = channel
        self._end = end
        self._future = NcclFuture(value, channel, end)

    def wait(self, timeout: Any = None) -> bool:
        """Make the current stream wait; the host goes on."""
        self._channel.device.stream.wait(self._end)
        return True

    def is_completed(self) -> bool:
        return self._channel.device.host.has_passed(self._end)

    def get_future(self) -> NcclFuture:
        return self._future

    getFuture = get_future  # noqa: N815  # the name that C++ calls


FAKE_BACKEND: Any = getattr(_C10D, "FakeProcessGroup", None)
"""A backend of torch's own tests; it gets the name of NCCL's while the fakes are installed."""


class NcclBackend(_C10D.Backend):  # type: ignore[misc]  # untyped
    """The backend that profkit's observed group shares with the real one."""

    def name(self) -> str:
        return "nccl"


class NcclGroup(_C10D.ProcessGroup):  # type: ignore[misc]  # untyped
    """One rank's process group. Only an all-reduce takes time; DDP's set-up does not."""

    group_name = "default"

    def __init__(self, rank: int, size: int, channel: Channel) -> None:
        super().__init__(rank, size)
        self.channel = channel
        self._backend: Any
        try:
            self._backend = NcclBackend(rank, size)
        except TypeError:  # Python cannot make backends before torch 2.11
            make = getattr(FAKE_BACKEND, "_create_internal", FAKE_BACKEND)
            self._backend = make(rank, size)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self._backend

    def name(self) -> str:
        return "nccl"

    getBackendName = name  # noqa: N815  # the name that C++ calls

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> NcclWork:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return NcclWork(tensors, self.channel, self.channel.enqueue(size))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> NcclWork:
        return NcclWork(tensors, self.channel, self.channel.stream.tail)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> NcclWork:
        for tensor in outputs[0]:
            tensor.copy_(inputs[0])
        return NcclWork(outputs[0], self.channel, self.channel.stream.tail)

    def barrier(self, opts: Any = None) -> NcclWork:
        return NcclWork([], self.channel, self.channel.stream.tail)
