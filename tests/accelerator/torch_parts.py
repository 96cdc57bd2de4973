"""A model, an optimizer and a loader whose work is that of the simulated accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.accelerator.devices import Device
from tests.accelerator.torch_fakes import on_cuda


class _LayerWork(torch.autograd.Function):
    """Launches a layer's kernels where a real layer would, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, layer: Layer) -> torch.Tensor:
        ctx.layer, ctx.weight = layer, weight
        layer.launch(layer.forward_ns)
        return inputs + 0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
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

    def step(self, closure: Any = None) -> Any:
        self._device.launch(self._step_ns)


class Scaler(torch.amp.GradScaler):
    """torch's own gradient scaler, with its state on the simulated device.

    It reads there if infinities were found, and waits for that, as on a GPU.
    """

    def __init__(self, device: Device) -> None:
        super().__init__("cuda")
        self._device_read = device

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        cpu = torch.device("cpu")
        super()._lazy_init_scale_growth_tracker(cpu)
        if self._scale is not None:
            self._scale = on_cuda(self._scale)

    def scale(self, outputs: Any) -> Any:
        return on_cuda(super().scale(outputs))

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        scale: Any = self._scale
        self._scale = scale.as_subclass(torch.Tensor)
        super().unscale_(optimizer)
        self._scale = scale
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        for device, value in found.items():
            found[device] = on_cuda(value)


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """A data set of whole batches; each takes `making_ns`, in the loop or in one worker.

    The worker is `AHEAD` batches ahead at most, so the loop waits for what is not made in time.
    """

    AHEAD = 2

    def __init__(
        self, device: Device, count: int, batch_size: int, making_ns: int, *, worker: bool = False
    ) -> None:
        self._host = device.host
        self._count = count
        self._batch = torch.zeros(batch_size, 1)
        self._making_ns = making_ns
        self._worker = worker
        self._taken_ns: list[int] = []
        self._ready_ns = self._host()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._count:
            raise IndexError(index)
        wait_ns = self._making_ns
        if self._worker:
            free_ns = self._taken_ns[-self.AHEAD] if len(self._taken_ns) >= self.AHEAD else 0
            self._ready_ns = max(self._ready_ns, free_ns) + self._making_ns
            wait_ns = max(0, self._ready_ns - self._host())
        self._host.work(wait_ns)
        self._taken_ns.append(self._host())
        return self._batch.clone()


def make_loader(batches: Batches) -> torch.utils.data.DataLoader[torch.Tensor]:
    """Return torch's own loader over the batches, in the process of the loop."""
    return torch.utils.data.DataLoader(batches, batch_size=None)


def make_model(device: Device, layers: Sequence[tuple[int, int]], **options: int) -> Any:
    """Return a model of these layers, each given by its time forward and backward in ns."""
    return torch.nn.Sequential(*[Layer(device, *times, **options) for times in layers])
