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
from profkit.workloads.training.driver import Kit, SharedDriver, map_leaves
from profkit.workloads.training.loop import Driver
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack
from profkit.workloads.training.settings import Seat

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
FIRST_SCALE = 1024.0
"""The gradient scaler's first scale."""


class PaddleKit(Kit):
    """PaddlePaddle."""

    def __init__(self, config: Mapping[str, Any], seat: Seat) -> None:
        super().__init__(paddle.distributed, seat.world_size)
        paddle.device.set_device(config["device"].replace("cuda", "gpu"))
        if seat.world_size > 1:
            backend = "gloo" if seat.gpu is None else "nccl"
            os.environ.setdefault("PADDLE_DISTRI_BACKEND", backend)
        self.meet(paddle.distributed.init_parallel_env)
        seed_everything(config["seed"])
        self.threads = int(os.environ["OMP_NUM_THREADS"].split(",")[0])

    def drive(
        self, parts: Parts, config: Mapping[str, Any], bad: BadSamples, other_loader: Any
    ) -> Driver:
        return PaddleDriver(parts, config, bad, other_loader)


class PaddleDriver(SharedDriver):
    """Trains parts on one device, alone or as a rank of DataParallel."""

    def __init__(
        self,
        parts: Parts,
        config: Mapping[str, Any],
        bad: BadSamples,
        other_loader: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(parts, config)
        self._amp: Any = paddle.amp
        self._dtype = DTYPES.get(config["precision"])
        self._level = config["amp"] or "O1"
        self.bare, self._optimizer = parts.model, parts.optimizer
        if parts.sync_bn and config["world_size"] > 1 and config["device"] != "cpu":
            self.bare = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(self.bare)
        if self._dtype and self._level == "O2":
            self.bare, self._optimizer = self._amp.decorate(
                self.bare, self._optimizer, level="O2", dtype=self._dtype
            )
        self.model = paddle.DataParallel(self.bare) if config["world_size"] > 1 else self.bare
        self._base_lr = float(self._optimizer.get_lr())
        self._scaler: Any = None
        if config["precision"] == "fp16":
            self._scaler = self._amp.GradScaler(init_loss_scaling=FIRST_SCALE)
        self.open_loader(bad, other_loader)
        self.model.train()

    def make_loader(self, dataset: Guarded, sampler: Batches) -> Iterable[Any]:
        io: Any = paddle.io  # its annotations ask for its own classes; it uses a few methods
        loader: Iterable[Any] = io.DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=self.config["workers"],
            collate_fn=functools.partial(_collate, self.parts.collate),
            prefetch_factor=self.config["prefetch"],
            use_shared_memory=True,
        )
        return loader

    def move(self, batch: Any) -> Any:
        return to_tensors(batch)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        cast: contextlib.AbstractContextManager[Any] = self._amp.auto_cast(
            level=self._level, dtype=self._dtype
        )
        return cast

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
            stepped = not bool(self._scaler._found_inf)  # noqa: SLF001  # it has no public attribute for a skipped step
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

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        sums = paddle.to_tensor(values)
        paddle.distributed.all_reduce(sums)
        return list(map(float, sums))

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        return paddle.no_grad()


def _collate(make: Callable[[Sequence[Any]], Any] | None, samples: Sequence[Any]) -> Any:
    """Return the batch as arrays: Paddle's loader makes tensors of these in the training process."""
    return make(samples) if make else list(stack(samples))


def to_tensors(batch: Any) -> Any:
    """Return nested arrays as tensors on the device; tensors stay."""

    def convert(value: Any) -> Any:
        return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value

    return map_leaves(batch, convert)


def seed_everything(seed: int) -> None:
    """Make the run repeatable."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # what parts of others draw from
    paddle.seed(seed)
