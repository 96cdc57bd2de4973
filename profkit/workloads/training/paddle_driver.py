"""Trains a workload's parts in PaddlePaddle."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from profkit.workloads.base import Parts
from profkit.workloads.training.driver import Kit, SharedDriver, map_leaves, meet
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack
from profkit.workloads.training.settings import Seat

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
FIRST_SCALE = 1024.0
"""The gradient scaler's first scale."""


def open_paddle(config: Mapping[str, Any], seat: Seat) -> Kit:
    """Set device and seed, and join the other ranks."""
    paddle.device.set_device(config["device"].replace("cuda", "gpu"))
    if seat.world_size > 1:
        backend = "gloo" if seat.gpu is None else "nccl"
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", backend)
        meet(paddle.distributed.init_parallel_env)
    random.seed(config["seed"])
    np.random.seed(config["seed"])  # noqa: NPY002  # what parts of others draw from
    paddle.seed(config["seed"])
    threads = int(os.environ["OMP_NUM_THREADS"].split(",")[0])
    return Kit(paddle, PaddleDriver, seat.world_size, threads)


class PaddleDriver(SharedDriver):
    """Trains parts on one device, alone or as a rank of DataParallel."""

    framework: Any = paddle

    def __init__(
        self,
        parts: Parts,
        config: Mapping[str, Any],
        bad: BadSamples,
        other_loader: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(parts, config)
        amp = self.framework.amp
        dtype, level = DTYPES.get(config["precision"]), config["amp"] or "O1"
        self.move = functools.partial(map_leaves, kind=np.ndarray, change=self.framework.to_tensor)
        self.autocast = contextlib.nullcontext
        if dtype:
            self.autocast = functools.partial(amp.auto_cast, level=level, dtype=dtype)
        self.bare, self._optimizer = parts.model, parts.optimizer
        if parts.sync_bn and config["world_size"] > 1 and config["device"] != "cpu":
            self.bare = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(self.bare)
        if dtype and level == "O2":
            self.bare, self._optimizer = amp.decorate(
                self.bare, self._optimizer, level="O2", dtype=dtype
            )
        self.model = paddle.DataParallel(self.bare) if config["world_size"] > 1 else self.bare
        self._base_lr = float(self._optimizer.get_lr())
        self._scaler: Any = None
        if config["precision"] == "fp16":
            self._scaler = amp.GradScaler(init_loss_scaling=FIRST_SCALE)
        self.open_loader(bad, other_loader)
        self.model.train()

    def make_loader(self, dataset: Guarded, sampler: Batches) -> Iterable[Any]:
        loader: Iterable[Any] = self.framework.io.DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=self.config["workers"],
            collate_fn=functools.partial(_collate, self.parts.collate),
            prefetch_factor=self.config["prefetch"],
            use_shared_memory=True,
        )
        return loader

    def backward(self, loss: Any) -> None:
        if self._scaler:
            loss = self._scaler.scale(loss)
        loss.backward()

    def update(self, step: int) -> bool:
        if self.parts.lr_at:
            self._optimizer.set_lr(self._base_lr * self.parts.lr_at(step))
        if self._scaler:
            self._scaler.unscale_(self._optimizer)
        if self.parts.clip_norm is not None:
            paddle.nn.utils.clip_grad_norm_(self.bare.parameters(), self.parts.clip_norm)
        stepped = True
        if self._scaler:
            self._scaler.step(self._optimizer)
            stepped = not bool(self._scaler._found_inf)  # noqa: SLF001  # nothing public says so
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.clear_grad()
        return stepped

    def value(self, loss: Any) -> float:
        return float(loss)

    @property
    def lr(self) -> float:
        return float(self._optimizer.get_lr())

    @property
    def grad_scale(self) -> float | None:
        return float(self._scaler.get_init_loss_scaling()) if self._scaler else None


def _collate(make: Callable[[Sequence[Any]], Any] | None, samples: Sequence[Any]) -> Any:
    """Return the batch as arrays, from which Paddle makes tensors in the training process."""
    return make(samples) if make else list(stack(samples))
