"""A training job in PyTorch on simulated accelerators: its ranks and the usual loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator.devices import Device
from tests.accelerator.jobs import Rank
from tests.accelerator.torch_fakes import SimulatedTorch, on_cuda
from tests.accelerator.torch_groups import NcclGroup
from tests.accelerator.torch_parts import Batches, Optimizer, make_loader, make_model


class TorchRank(Rank):
    """One rank of a job in PyTorch."""

    framework = "torch"

    @classmethod
    def simulate(cls, device: Callable[[], Device]) -> SimulatedTorch:
        return SimulatedTorch(device)

    def make_model(self) -> Any:
        """Return the job's model, distributed if there are several ranks."""
        job = self.job
        model = make_model(self.device, job.layers, kernels=job.kernels, elements=job.elements)
        if self.channel is None:
            return model
        group = NcclGroup(self.device.number, self.size, self.channel)
        cap = job.bucket_layers * job.elements * 4 / 2**20
        queues = {"CUDA_DEVICE_MAX_CONNECTIONS": str(self.device.connections)}
        with mock.patch.dict(os.environ, queues):
            return DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap)

    def make_optimizer(self, model: Any) -> Optimizer:
        return Optimizer(model.parameters(), self.device, self.job.optimizer_ns)

    def batches(self, count: int | None = None) -> Iterator[torch.Tensor]:
        """Return torch's own loader of the job's batches, for all of its steps."""
        job = self.job
        if count is None:
            count = job.steps * job.micro_batches
        made = Batches(self.device, count, job.batch_size, job.data_ns, worker=job.worker)
        return iter(make_loader(made))

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Copy a batch to the device, from pinned memory if the job has its batches there."""
        batch.is_pinned_here = self.job.pinned  # type: ignore[attr-defined]  # see `Tensor.to`
        self.simulated.copy_ns = self.job.copy_ns
        return batch.to("cuda", non_blocking=True)


def train(rank: TorchRank) -> None:
    """Train the usual way: copy, forward, backward, step, and read the loss."""
    job, model = rank.job, rank.make_model()
    optimizer = rank.make_optimizer(model)
    for number, batch in enumerate(rank.batches()):
        is_last = (number + 1) % job.micro_batches == 0
        quiet = job.no_sync and not is_last
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = on_cuda(model(rank.copy(batch)).sum())
            loss.backward()
        if not is_last:
            continue
        optimizer.step()
        step = (number + 1) // job.micro_batches
        if job.loss_every and step % job.loss_every == 0:
            loss.item()
    torch.cuda.synchronize()
