"""Trains a workload's parts in PyTorch."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from profkit.workloads.base import Parts
from profkit.workloads.training.driver import Kit, SharedDriver, map_leaves
from profkit.workloads.training.loop import Driver
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack
from profkit.workloads.training.settings import Seat

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
RENDEZVOUS_S = 300
"""Seconds in which all ranks must have joined."""


class TorchKit(Kit):
    """PyTorch."""

    def __init__(self, config: Mapping[str, Any], seat: Seat) -> None:
        super().__init__(torch.distributed, seat.world_size)
        self._device = torch.device(config["device"])
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self._device)
            torch.cuda.init()
        seed_everything(config["seed"])
        timeout = dt.timedelta(seconds=RENDEZVOUS_S)
        backend = "nccl" if on_gpu else "gloo"
        self.meet(lambda: torch.distributed.init_process_group(backend, timeout=timeout))
        self.threads = torch.get_num_threads()

    def drive(
        self, parts: Parts, config: Mapping[str, Any], bad: BadSamples, other_loader: Any
    ) -> Driver:
        return TorchDriver(parts, config, bad, self._device, other_loader)


class TorchDriver(SharedDriver):
    """Trains parts on one device, alone or as a rank of DistributedDataParallel."""

    def __init__(
        self,
        parts: Parts,
        config: Mapping[str, Any],
        bad: BadSamples,
        device: torch.device,
        other_loader: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(parts, config)
        self._device = device
        self._dtype = DTYPES.get(config["precision"])
        self._layout = torch.contiguous_format
        if config["memory_format"] == "NHWC":
            self._layout = torch.channels_last
        self.bare = parts.model.to(device, memory_format=self._layout)
        self.model = self._wrap()
        self._optimizer = parts.optimizer
        self._base_lrs = [group["lr"] for group in self._optimizer.param_groups]
        self._scaler = torch.amp.GradScaler(device.type, enabled=config["precision"] == "fp16")
        self.open_loader(bad, other_loader)
        self.model.train()

    def _wrap(self) -> torch.nn.Module:
        on_gpu, ranks = self._device.type == "cuda", self.config["world_size"]
        if ranks > 1 and self.parts.sync_bn and on_gpu:
            self.bare = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.bare)
        model: torch.nn.Module = self.bare
        if self.config["compile"]:
            model.compile()
        if ranks == 1:
            return model
        devices = [self._device] if on_gpu else None
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def make_loader(self, dataset: Guarded, sampler: Batches) -> Iterable[Any]:
        config, workers = self.config, self.config["workers"]
        return DataLoader(
            dataset,  # type: ignore[arg-type]  # torch asks for its own class, and uses two methods
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=functools.partial(_collate, self.parts.collate or stack),
            pin_memory=config["pin"],
            prefetch_factor=config["prefetch"] if workers else None,
            generator=torch.Generator().manual_seed(config["seed"]),
        )

    def move(self, batch: Any) -> Any:
        return to_device(to_tensors(batch), self._device, self._layout)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None)

    def backward(self, loss: Any) -> None:
        self._scaler.scale(loss).backward()

    def update(self, step: int) -> bool:
        factor = self.parts.lr_at(step) if self.parts.lr_at else 1.0
        for group, base in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        if self.parts.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self.bare.parameters(), self.parts.clip_norm)
        before = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return self._scaler.get_scale() >= before

    def value(self, loss: Any) -> float:
        return float(loss.detach())

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def grad_scale(self) -> float | None:
        return self._scaler.get_scale() if self._scaler.is_enabled() else None

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        sums = torch.tensor(values, device=self._device)
        torch.distributed.all_reduce(sums)
        return list(map(float, sums))

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()


def _collate(make: Callable[[Sequence[Any]], Any], samples: Sequence[Any]) -> Any:
    return to_tensors(make(samples))


def to_tensors(batch: Any) -> Any:
    """Return nested arrays as tensors that share their memory."""

    def convert(value: Any) -> Any:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    return map_leaves(batch, convert)


def to_device(
    batch: Any, device: torch.device, layout: torch.memory_format = torch.contiguous_format
) -> Any:
    """Copy nested tensors to the device; images, which have four dimensions, get the layout."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        memory_format = torch.preserve_format
        if value.dim() == 4 and value.is_floating_point():
            memory_format = layout
        return value.to(device, non_blocking=True, memory_format=memory_format)

    return map_leaves(batch, move)


def seed_everything(seed: int) -> None:
    """Make the run repeatable."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # what parts of others draw from
    torch.manual_seed(seed)
