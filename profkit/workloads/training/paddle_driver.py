"""A workload's parts as PaddlePaddle trains them."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from profkit.errors import ProfkitError
from profkit.workloads.base import Parts
from profkit.workloads.training.loop import repeat
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
FIRST_SCALE = 1024.0


class PaddleDriver:
    """Trains parts on one device, alone or as a rank of DataParallel."""

    def __init__(
        self,
        parts: Parts,
        config: Mapping[str, Any],
        bad: BadSamples,
        other_loader: Iterable[Any] | None = None,
    ) -> None:
        self._parts = parts
        self._config = config
        self._dtype = DTYPES.get(config["precision"])
        self._level = config["amp"] or "O1"
        self._bare = parts.model
        self._optimizer = parts.optimizer
        if parts.sync_bn and config["world_size"] > 1 and config["device"] != "cpu":
            self._bare = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(self._bare)
        if self._dtype and self._level == "O2":
            amp: Any = paddle.amp
            self._bare, self._optimizer = amp.decorate(
                self._bare, self._optimizer, level="O2", dtype=self._dtype
            )
        self._model = paddle.DataParallel(self._bare) if config["world_size"] > 1 else self._bare
        self._base_lr = float(self._optimizer.get_lr())
        self._scaler = (
            paddle.amp.GradScaler(init_loss_scaling=FIRST_SCALE)
            if config["precision"] == "fp16"
            else None
        )
        self._sampler: Batches | None = None
        self._loader = self._open_loader(bad) if other_loader is None else other_loader
        self._model.train()

    def _open_loader(self, bad: BadSamples) -> Iterable[Any]:
        parts, config = self._parts, self._config
        if config["data"] == "synthetic":
            return repeat(to_tensors(parts.synthetic(config["batch_size"])), config["steps"])
        if parts.dataset is None:
            raise ProfkitError("this workload has no data set of its own")
        self._sampler = Batches(
            len(parts.dataset),
            config["batch_size"],
            seed=config["seed"],
            rank=config["rank"],
            world_size=config["world_size"],
            groups=parts.groups,
        )
        io: Any = paddle.io  # its annotations ask for its own classes; it uses a few methods
        loader: Iterable[Any] = io.DataLoader(
            Guarded(parts.dataset, bad),
            batch_sampler=self._sampler,
            num_workers=config["workers"],
            collate_fn=functools.partial(_collate, parts.collate),
            prefetch_factor=config["prefetch"],
            use_shared_memory=True,
        )
        return loader

    def batches(self, epoch: int) -> Iterable[Any]:
        if self._sampler is not None:
            self._sampler.epoch = epoch
        return self._loader

    def count(self, batch: Any) -> int:
        return self._parts.count(batch)

    def move(self, batch: Any) -> Any:
        return to_tensors(batch)

    def forward(self, batch: Any) -> Any:
        with self._autocast():
            return self._parts.loss_of(self._model, batch)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self._dtype is None:
            return contextlib.nullcontext()
        amp: Any = paddle.amp
        cast: contextlib.AbstractContextManager[object] = amp.auto_cast(
            level=self._level, dtype=self._dtype
        )
        return cast

    def backward(self, loss: Any) -> None:
        (self._scaler.scale(loss) if self._scaler else loss).backward()

    def update(self, step: int) -> bool:
        if self._parts.lr_at:
            self._optimizer.set_lr(self._base_lr * self._parts.lr_at(step))
        stepped = self._step()
        self._optimizer.clear_grad()
        return stepped

    def _step(self) -> bool:
        if self._scaler is None:
            self._clip()
            self._optimizer.step()
            return True
        self._scaler.unscale_(self._optimizer)
        self._clip()
        self._scaler.step(self._optimizer)
        stepped = not bool(self._scaler._found_inf)  # noqa: SLF001  # the scaler tells nobody whether it skipped the step
        self._scaler.update()
        return stepped

    def _clip(self) -> None:
        if self._parts.clip_norm is not None:
            paddle.nn.utils.clip_grad_norm_(self._bare.parameters(), self._parts.clip_norm)

    def value(self, loss: Any) -> float:
        return float(loss)

    @property
    def lr(self) -> float:
        return float(self._optimizer.get_lr())

    @property
    def grad_scale(self) -> float | None:
        return float(self._scaler.get_init_loss_scaling()) if self._scaler else None

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        world = self._config["world_size"]
        if world == 1:
            return stop, loss
        sums = paddle.to_tensor([float(stop), loss])
        paddle.distributed.all_reduce(sums)
        return bool(sums[0] > 0), float(sums[1]) / world

    def evaluate(self) -> Mapping[str, float]:
        if self._parts.evaluate is None:
            raise ProfkitError("this workload has no evaluation")
        self._bare.eval()
        with paddle.no_grad():
            figures = self._parts.evaluate(self._bare)
        self._bare.train()
        return figures


def _collate(make: Callable[[Sequence[Any]], Any] | None, samples: Sequence[Any]) -> Any:
    """The batch as arrays: Paddle's loader makes tensors of these on the loop's side."""
    return make(samples) if make else list(stack(samples))


def to_tensors(batch: Any) -> Any:
    """Nested arrays as tensors on the device; tensors stay."""
    if isinstance(batch, dict):
        return {name: to_tensors(value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(to_tensors(value) for value in batch)
    return paddle.to_tensor(batch) if isinstance(batch, np.ndarray) else batch


def seed_everything(seed: int) -> None:
    """Make the run repeatable."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # what parts of others draw from
    paddle.seed(seed)
