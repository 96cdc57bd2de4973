"""Trains a workload's parts in PyTorch."""

from __future__ import annotations

import datetime as dt
import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.dlpack import from_dlpack

from profkit.vocab import Phase
from profkit.workloads.base import Parts
from profkit.workloads.training.driver import (
    DeviceArray,
    Kit,
    SharedDriver,
    describe_tf32,
    map_leaves,
    meet,
)
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack
from profkit.workloads.training.settings import Seat

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
RENDEZVOUS = dt.timedelta(seconds=300)
"""The time in which all ranks must have joined."""


def open_torch(config: Mapping[str, Any], seat: Seat) -> Kit:
    """Set device and seed, and join the other ranks."""
    device = torch.device(config["device"])
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
        torch.cuda.init()
        torch.backends.cudnn.benchmark = config["autotune"]
    random.seed(config["seed"])
    np.random.seed(config["seed"])  # noqa: NPY002  # what parts of others draw from
    torch.manual_seed(config["seed"])
    if seat.rank.world_size > 1:
        init = torch.distributed.init_process_group
        meet(functools.partial(init, "nccl" if on_gpu else "gloo", timeout=RENDEZVOUS))
    read = functools.partial(torch.load, map_location="cpu", weights_only=True)
    flags = {}
    if on_gpu:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        flags["tf32"] = describe_tf32(cudnn.allow_tf32, matmul.allow_tf32)
    return Kit(torch, TorchDriver, seat.rank.world_size, torch.get_num_threads(), read, flags)


class TorchDriver(SharedDriver):
    """Trains parts on one device, alone or as a rank of DistributedDataParallel."""

    framework = torch

    def __init__(
        self,
        parts: Parts,
        config: Mapping[str, Any],
        bad: BadSamples,
        other_loader: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(parts, config)
        device = torch.device(config["device"])
        dtype = DTYPES.get(config["precision"])
        layout = torch.contiguous_format
        if config["memory_format"] == "NHWC":
            layout = torch.channels_last
        self.move = functools.partial(to_device, device=device, layout=layout)
        self.autocast = functools.partial(
            torch.autocast, device.type, dtype, enabled=dtype is not None
        )
        self.bare = parts.model.to(device, memory_format=layout)
        on_gpu, ranks = device.type == "cuda", config["world_size"]
        if ranks > 1 and parts.sync_bn and on_gpu:
            self.bare = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.bare)
        if config["compile"]:
            self.bare.compile()
        self.model = self.bare
        if ranks > 1:
            devices = [device] if on_gpu else None
            self.model = torch.nn.parallel.DistributedDataParallel(self.bare, device_ids=devices)
        self._optimizer = parts.optimizer
        self._base_lrs = [group["lr"] for group in self._optimizer.param_groups]
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=parts.mixed.first_scale,
            enabled=config["precision"] == "fp16",
        )
        self.lr = self._base_lrs[0]
        if self._scaler.is_enabled():
            self.grad_scale = parts.mixed.first_scale
        self.open_loader(bad, other_loader)
        self.model.train()

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

    def backward(self, loss: Any) -> None:
        self._scaler.scale(loss).backward()

    def update(self, step: int) -> None:
        factor = self.parts.lr_at(step) if self.parts.lr_at else 1.0
        for group, base in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        self.lr = self._base_lrs[0] * factor
        if self.parts.clip_norm is not None:
            with self.region(Phase.OPTIMIZER.value):
                self._scaler.unscale_(self._optimizer)
                torch.nn.utils.clip_grad_norm_(self.bare.parameters(), self.parts.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scaler.is_enabled():
            self.grad_scale = self._scaler.get_scale()

    def state(self) -> tuple[Any, Any]:
        shared = {
            "model": self.bare.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }
        kind, words, *rest = np.random.get_state()  # noqa: NPY002  # as open_torch seeds it
        own = {
            "buffers": dict(self.bare.named_buffers()),
            "random": random.getstate(),
            "numpy": (kind, np.asarray(words).tolist(), *rest),
            "torch": torch.get_rng_state(),
        }
        if self.config["device"] != "cpu":
            own["cuda"] = torch.cuda.get_rng_state()
        return shared, own

    def load_state(self, shared: Any, own: Any) -> None:
        self.bare.load_state_dict(shared["model"])
        self.bare.load_state_dict(own["buffers"], strict=False)
        self._optimizer.load_state_dict(shared["optimizer"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(shared["scaler"])
            self.grad_scale = self._scaler.get_scale()
        random.setstate(own["random"])
        np.random.set_state(own["numpy"])  # noqa: NPY002  # as open_torch seeds it
        torch.set_rng_state(own["torch"])
        if "cuda" in own:
            torch.cuda.set_rng_state(own["cuda"])


def _collate(make: Callable[[Sequence[Any]], Any], samples: Sequence[Any]) -> Any:
    return map_leaves(make(samples), np.ndarray, torch.from_numpy)


def to_device(batch: Any, device: torch.device, layout: torch.memory_format) -> Any:
    """Copy nested arrays and tensors to the device; images (four dimensions) get the layout."""

    def move(value: torch.Tensor) -> torch.Tensor:
        memory_format = torch.preserve_format
        if value.dim() == 4 and value.is_floating_point():
            memory_format = layout
        return value.to(device, non_blocking=True, memory_format=memory_format)

    # Another library owns a device array and reuses its memory for a later batch.
    tensors = map_leaves(batch, DeviceArray, lambda made: from_dlpack(made.array).clone())
    tensors = map_leaves(tensors, np.ndarray, torch.from_numpy)
    return map_leaves(tensors, torch.Tensor, move)
