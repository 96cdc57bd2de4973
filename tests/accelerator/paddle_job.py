"""A training job in PaddlePaddle on simulated accelerators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
from paddle.base import core

from tests.accelerator.devices import Device
from tests.accelerator.jobs import Rank
from tests.accelerator.paddle_fakes import NcclGroup, SimulatedPaddle


class _LayerWork(paddle.autograd.PyLayer):
    """Launches a layer's kernels where a real layer would, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Any, weight: Any, layer: Layer) -> Any:
        ctx.layer, ctx.weight, ctx.is_first = layer, weight, inputs.stop_gradient
        layer.launch(layer.forward_ns)
        return inputs + 0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.layer.launch(ctx.layer.backward_ns)
        return None if ctx.is_first else gradient, paddle.zeros_like(ctx.weight)


class Layer(paddle.nn.Layer):
    """A layer of some kernels in each direction, which share its times."""

    def __init__(self, device: Device, times: tuple[int, int], kernels: int, elements: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([elements])
        self.device = device
        self.forward_ns, self.backward_ns = times
        self.kernels = kernels

    def launch(self, duration_ns: int) -> None:
        for _ in range(self.kernels):
            self.device.launch(duration_ns // self.kernels)

    def forward(self, inputs: Any) -> Any:
        work: Any = _LayerWork
        return work.apply(inputs, self.weight, self)


class Parallel(paddle.DataParallel):
    """Paddle's own `DataParallel`, made without its launcher's environment."""

    def __init__(self, layers: Any, group: Any, bucket_layers: int) -> None:
        paddle.nn.Layer.__init__(self)
        self._layers = layers
        strategy: Any = SimpleNamespace(nranks=group.size())
        self._strategy = strategy
        self.grad_need_sync = True
        parameters = layers.parameters()
        backwards = list(reversed(range(len(parameters))))
        groups = [
            backwards[first : first + bucket_layers]
            for first in range(0, len(parameters), bucket_layers)
        ]
        is_sparse = [False] * len(parameters)
        self._reducer = core.EagerReducer(parameters, groups, is_sparse, group, [], False)


class Optimizer(paddle.optimizer.Optimizer):  # type: ignore[misc]  # untyped
    """An optimizer whose step is one kernel."""

    def __init__(self, parameters: Sequence[Any], device: Device, step_ns: int) -> None:
        super().__init__(0.1, parameters)
        self._device = device
        self._step_ns = step_ns

    def step(self) -> None:
        self._device.launch(self._step_ns)


class Batches(paddle.io.Dataset[Any]):
    """A data set of whole batches."""

    def __init__(self, count: int, batch_size: int) -> None:
        super().__init__()
        self._count = count
        self._batch = np.zeros((batch_size, 1), np.float32)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._batch


class PaddleRank(Rank):
    """One rank of a job in PaddlePaddle 3."""

    framework = "paddle"
    simulated: SimulatedPaddle
    timed = True

    @classmethod
    def simulate(cls, device: Callable[[], Device]) -> SimulatedPaddle:
        return SimulatedPaddle(device, timed=cls.timed)

    def make_model(self) -> Any:
        """Return the job's model, distributed if there are several ranks."""
        job = self.job
        layers = [Layer(self.device, times, job.kernels, job.elements) for times in job.layers]
        model = paddle.nn.Sequential(*layers)
        if self.channel is None:
            return model
        return Parallel(model, NcclGroup(self.size, self.channel), job.bucket_layers)

    def batches(self) -> Iterator[Any]:
        job = self.job
        count = job.steps * job.micro_batches
        self.simulated.making_ns = job.data_ns
        made = Batches(count, job.batch_size)
        loader: Any = paddle.io.DataLoader
        return iter(loader(made, batch_size=None, use_buffer_reader=False))


class OldPaddleRank(PaddleRank):
    """One rank of a job in PaddlePaddle 2.6, whose events know no times."""

    timed = False


def train(rank: PaddleRank) -> None:
    """Train the usual way: copy, forward, backward, step, and wait for the device."""
    job, model = rank.job, rank.make_model()
    optimizer = Optimizer(model.parameters(), rank.device, job.optimizer_ns)
    for number, batch in enumerate(rank.batches()):
        is_last = (number + 1) % job.micro_batches == 0
        quiet = job.no_sync and not is_last
        with model.no_sync() if quiet else contextlib.nullcontext():
            batch.is_pinned_here = job.pinned
            rank.simulated.copy_ns = job.copy_ns
            model(batch.cuda()).sum().backward()
        if is_last:
            optimizer.step()
            rank.device.synchronize()
