"""A model, an optimizer and a loader whose work is that of the simulated accelerator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from profkit.testing.accelerator.devices import Device


class _LayerWork(torch.autograd.Function):
    """Launches a layer's kernels where a real layer would, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, layer: Layer) -> torch.Tensor:
        ctx.layer, ctx.weight = layer, weight
        layer.launch(layer.forward_ns)
        return inputs + 0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        layer = ctx.layer
        layer.launch(layer.backward_ns)
        return gradient, torch.zeros_like(ctx.weight), None


class Layer(torch.nn.Module):
    """A layer of `kernels` kernels in each direction, which share its times."""

    def __init__(
        self,
        device: Device,
        forward_ns: int,
        backward_ns: int,
        *,
        kernels: int = 1,
        elements: int = 1024,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(elements))
        self.device = device
        self.forward_ns = forward_ns
        self.backward_ns = backward_ns
        self.kernels = kernels

    def launch(self, duration_ns: int) -> None:
        for _ in range(self.kernels):
            self.device.launch(duration_ns // self.kernels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = _LayerWork.apply(inputs, self.weight, self)
        return outputs


class Optimizer(torch.optim.Optimizer):
    """An optimizer whose step is one kernel."""

    def __init__(self, parameters: Any, device: Device, step_ns: int) -> None:
        super().__init__(parameters, {})
        self._device = device
        self._step_ns = step_ns

    def step(self, closure: Any = None) -> None:
        self._device.launch(self._step_ns)


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """A data set of whole batches; making one takes the host the time that `wait_ns` returns."""

    def __init__(
        self, device: Device, count: int, batch_size: int, wait_ns: Callable[[int], int]
    ) -> None:
        self._device = device
        self._count = count
        self._batch_size = batch_size
        self._wait_ns = wait_ns

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._count:
            raise IndexError(index)
        self._device.host.work(self._wait_ns(index))
        return torch.zeros(self._batch_size, 1, requires_grad=False)


def make_loader(batches: Batches) -> torch.utils.data.DataLoader[torch.Tensor]:
    """Return torch's own loader over the batches, in the process of the loop."""
    return torch.utils.data.DataLoader(batches, batch_size=None)


def make_model(device: Device, layers: Sequence[tuple[int, int]], **options: int) -> Any:
    """Return a model of these layers, each given by its time forward and backward in ns."""
    return torch.nn.Sequential(*[Layer(device, *times, **options) for times in layers])
