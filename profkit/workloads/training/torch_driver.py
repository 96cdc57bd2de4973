"""A workload's parts as PyTorch trains them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from profkit.errors import ProfkitError
from profkit.workloads.base import Parts
from profkit.workloads.training.loop import repeat
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Loading:
    """How batches come: from a loader of the framework, from another pipeline, or the same one again."""

    sampler: Batches | None
    loader: Iterable[Any]


class TorchDriver:
    """Trains parts on one device, alone or as a rank of DistributedDataParallel."""

    def __init__(
        self,
        parts: Parts,
        config: Mapping[str, Any],
        bad: BadSamples,
        device: torch.device,
        other_loader: Iterable[Any] | None = None,
    ) -> None:
        self._parts = parts
        self._config = config
        self._device = device
        self._dtype = DTYPES.get(config["precision"])
        self._layout = (
            torch.channels_last if config["memory_format"] == "NHWC" else torch.contiguous_format
        )
        self._bare = parts.model.to(device, memory_format=self._layout)
        self._model = self._wrap(self._bare)
        self._optimizer = parts.optimizer
        self._base_lrs = [group["lr"] for group in self._optimizer.param_groups]
        self._scaler = torch.amp.GradScaler(device.type, enabled=config["precision"] == "fp16")
        self._loading = (
            self._open_loader(bad) if other_loader is None else Loading(None, other_loader)
        )
        self._model.train()

    def _wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        if self._config["world_size"] > 1 and self._parts.sync_bn and self._device.type == "cuda":
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            self._bare = model
        if self._config["compile"]:
            model.compile()
        if self._config["world_size"] > 1:
            return torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[self._device] if self._device.type == "cuda" else None
            )
        return model

    def _open_loader(self, bad: BadSamples) -> Loading:
        parts, config = self._parts, self._config
        if config["data"] == "synthetic":
            return Loading(
                None,
                repeat(
                    to_device(
                        to_tensors(parts.synthetic(config["batch_size"])),
                        self._device,
                        self._layout,
                    ),
                    config["steps"],
                ),
            )
        if parts.dataset is None:
            raise ProfkitError("this workload has no data set of its own")
        sampler = Batches(
            len(parts.dataset),
            config["batch_size"],
            seed=config["seed"],
            rank=config["rank"],
            world_size=config["world_size"],
            groups=parts.groups,
        )
        workers = config["workers"]
        loader: DataLoader[Any] = DataLoader(
            Guarded(parts.dataset, bad),  # type: ignore[arg-type]  # torch asks for its own class, and uses two methods
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=functools.partial(_collate, parts.collate or stack),
            pin_memory=config["pin"],
            prefetch_factor=config["prefetch"] if workers else None,
            generator=torch.Generator().manual_seed(config["seed"]),
        )
        return Loading(sampler, loader)

    def batches(self, epoch: int) -> Iterable[Any]:
        if self._loading.sampler is not None:
            self._loading.sampler.epoch = epoch
        return self._loading.loader

    def count(self, batch: Any) -> int:
        return self._parts.count(batch)

    def move(self, batch: Any) -> Any:
        return to_device(to_tensors(batch), self._device, self._layout)

    def forward(self, batch: Any) -> Any:
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
            return self._parts.loss_of(self._model, batch)

    def backward(self, loss: Any) -> None:
        self._scaler.scale(loss).backward()

    def update(self, step: int) -> bool:
        factor = self._parts.lr_at(step) if self._parts.lr_at else 1.0
        for group, base in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        if self._parts.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._bare.parameters(), self._parts.clip_norm)
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

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        world = self._config["world_size"]
        if world == 1:
            return stop, loss
        sums = torch.tensor([float(stop), loss], device=self._device)
        torch.distributed.all_reduce(sums)
        return bool(sums[0] > 0), float(sums[1]) / world

    def evaluate(self) -> Mapping[str, float]:
        if self._parts.evaluate is None:
            raise ProfkitError("this workload has no evaluation")
        self._bare.eval()
        with torch.no_grad():
            figures = self._parts.evaluate(self._bare)
        self._bare.train()
        return figures


def _collate(make: Callable[[Sequence[Any]], Any], samples: Sequence[Any]) -> Any:
    return to_tensors(make(samples))


def to_tensors(batch: Any) -> Any:
    """Nested arrays as tensors that share their memory."""
    return _map(
        batch, lambda value: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    )


def to_device(
    batch: Any, device: torch.device, layout: torch.memory_format = torch.contiguous_format
) -> Any:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        images = value.dim() == 4 and value.is_floating_point()
        return value.to(
            device, non_blocking=True, memory_format=layout if images else torch.preserve_format
        )

    return _map(batch, move)


def _map(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, dict):
        return {name: _map(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_map(value, change) for value in batch)
    return change(batch)


def seed_everything(seed: int) -> None:
    """Make the run repeatable."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # what parts of others draw from
    torch.manual_seed(seed)
