"""Stand-ins for torch's CUDA names, on a simulated accelerator.

profkit's hooks are installed on top of these, so all of their code runs as on a GPU. Tensors live
on the host and only call themselves CUDA tensors, so the autograd engine and DDP's reducer are
torch's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.accelerator.devices import Device, Event, Stream, Work
from tests.accelerator.replacing import put
from tests.accelerator.torch_groups import FAKE_BACKEND

_Tensor: Any = torch.Tensor
"""The base of fakes that replace what their base declares as constant."""


class CudaTensor(_Tensor):  # type: ignore[misc]  # see above
    """A tensor that calls itself one of a CUDA device. Reading it makes the host wait."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)
    device = property(lambda self: torch.device("cuda", 0))


def on_cuda(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as one of the device, still part of its graph."""
    return tensor.as_subclass(CudaTensor)


class SimulatedTorch:
    """Replaces torch's names for CUDA. `device` is that of the rank whose turn it is."""

    def __init__(self, device: Callable[[], Device]) -> None:
        self.device = device
        self.copy_ns = 0
        """Duration of the next copies, as `Tensor.to` does not tell what a job's copy takes."""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the names, until the block ends."""
        with contextlib.ExitStack() as stack:
            for owner, name, value in self._names():
                put(stack, owner, name, value)
            yield

    def _names(self) -> list[tuple[Any, str, Any]]:
        cuda, tensor = torch.cuda, torch.Tensor
        device = self.device
        names: list[tuple[Any, str, Any]] = [
            (cuda, "is_available", lambda: True),
            (cuda, "is_initialized", lambda: True),
            (cuda, "current_device", lambda: device().number),
            (cuda, "synchronize", lambda *_: device().synchronize()),
            (cuda, "is_current_stream_capturing", lambda: device().stream.captures),
            (cuda, "Event", self._make_event_class()),
            (cuda, "Stream", lambda *_, **__: Stream(device())),
            (cuda, "stream", self._use_stream),
            (cuda, "current_stream", lambda *_: device().stream),
            (torch._C, "_cuda_isCurrentStreamCapturing", lambda: device().stream.captures),
            (torch._C, "_cuda_getDevice", lambda: device().number),
            (torch._C, "_cuda_getCurrentRawStream", lambda _: id(device().stream)),
            (cuda, "set_stream", lambda _: None),  # of a thread that the job does not have
            (cuda, "default_stream", lambda *_: device().default_stream),
            (cuda, "CUDAGraph", self._make_graph_class()),
            (torch.autograd, "backward", self._end_backward(torch.autograd.backward)),
            (tensor, "to", self._copy(tensor.to)),
            (tensor, "cuda", lambda own, *_, **given: own.to("cuda", **given)),
            (tensor, "cpu", lambda own: own.to("cpu")),
            (tensor, "item", self._read(tensor.item)),
        ]
        if FAKE_BACKEND is not None:
            names.append((FAKE_BACKEND, "name", lambda own: "nccl"))
        return names

    def _make_event_class(self) -> type:
        device = self.device

        class CudaEvent(Event):
            def __init__(self, enable_timing: bool = False, **options: Any) -> None:
                super().__init__(device(), timed=enable_timing)

        return CudaEvent

    def _make_graph_class(self) -> type:
        device = self.device

        class CUDAGraph:
            """A captured graph, as `torch.cuda.CUDAGraph`."""

            work: tuple[Work, ...] = ()

            def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
                device().begin_capture(capture_error_mode)

            def capture_end(self) -> None:
                self.work = device().end_capture()

            def replay(self) -> None:
                device().replay(self.work)

        return CUDAGraph

    @contextlib.contextmanager
    def _use_stream(self, stream: Stream | None) -> Iterator[None]:
        streams = self.device().streams_in_use
        streams.append(stream or streams[-1])
        try:
            yield
        finally:
            streams.pop()

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def to(own: torch.Tensor, *args: Any, **given: Any) -> Any:
            target = str(given.get("device", args[0] if args else ""))
            if target.startswith("cuda") and not own.is_cuda:
                pinned = getattr(own, "is_pinned_here", False)
                waits = not (pinned and given.get("non_blocking", False))
                self.device().copy(self.copy_ns, waits=waits)
                return on_cuda(own.detach())
            if target.startswith("cuda"):
                return own
            if target.startswith("cpu") and own.is_cuda:
                self.device().synchronize_stream()
                return own.as_subclass(torch.Tensor)
            return original(own, *args, **given)

        return to

    def _end_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        def backward(*args: Any, **given: Any) -> None:
            original(*args, **given)
            self.device().end_of_backward()

        return backward

    def _read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def item(own: torch.Tensor) -> Any:
            if own.is_cuda:
                self.device().synchronize_stream()
            return original(own)

        return item
