"""Trains a workload's parts in PaddlePaddle."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from profkit.errors import ProfkitError, UnreadableError
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
from profkit.workloads.training.ops_paddle import set_nhwc
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, stack
from profkit.workloads.training.settings import PADDLE_AUTOTUNE, Seat

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
ERROR = "profkit_error"
"""The name under which a batch has a loader's error, as bytes of text."""


def open_paddle(config: Mapping[str, Any], seat: Seat) -> Kit:
    """Set device and seed, and join the other ranks."""
    paddle.device.set_device(config["device"].replace("cuda", "gpu"))
    if seat.gpu is not None:
        paddle.set_flags({PADDLE_AUTOTUNE: config["autotune"]})
    if seat.rank.world_size > 1:
        backend = "gloo" if seat.gpu is None else "nccl"
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", backend)
        meet(paddle.distributed.init_parallel_env)
    random.seed(config["seed"])
    np.random.seed(config["seed"])  # noqa: NPY002  # what parts of others draw from
    paddle.seed(config["seed"])
    threads = int(os.environ["OMP_NUM_THREADS"].split(",")[0])
    flags = {}
    core = paddle.base.core
    if hasattr(core, "get_cudnn_switch"):  # builds without CUDA have no such switches
        flags["tf32"] = describe_tf32(core.get_cudnn_switch(), core.get_cublas_switch())
    return Kit(paddle, PaddleDriver, seat.rank.world_size, threads, paddle.load, flags)


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
        self.move = functools.partial(_to_tensors, nhwc=config["memory_format"] == "NHWC")
        self.autocast = contextlib.nullcontext
        if dtype:
            self.autocast = functools.partial(
                amp.auto_cast,
                level=level,
                dtype=dtype,
                custom_white_list=parts.mixed.white or None,
                custom_black_list=parts.mixed.black or None,
            )
        self.bare, self._optimizer = parts.model, parts.optimizer
        if parts.sync_bn and config["world_size"] > 1 and config["device"] != "cpu":
            self.bare = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(self.bare)
        if config["memory_format"] == "NHWC":
            set_nhwc(self.bare)
        if dtype and level == "O2":
            self.casts_evaluation = True
            self.bare, self._optimizer = amp.decorate(
                self.bare, self._optimizer, level="O2", dtype=dtype
            )
        self.model = paddle.DataParallel(self.bare) if config["world_size"] > 1 else self.bare
        self._base_lr = self.lr = float(self._optimizer.get_lr())
        self._scaler: Any = None
        if config["precision"] == "fp16":
            self.grad_scale = parts.mixed.first_scale
            self._scaler = amp.GradScaler(init_loss_scaling=self.grad_scale)
        self.open_loader(bad, other_loader)
        self.model.train()

    def make_loader(self, dataset: Guarded, sampler: Batches) -> Iterable[Any]:
        loader: Iterable[Any] = self.framework.io.DataLoader(
            Reporting(dataset),
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

    def update(self, step: int) -> None:
        if self.parts.lr_at:
            self.lr = self._base_lr * self.parts.lr_at(step)
            self._optimizer.set_lr(self.lr)
        if self._scaler:
            self._scaler.unscale_(self._optimizer)
        if self.parts.clip_norm is not None:
            with self.region(Phase.OPTIMIZER.value):
                paddle.nn.utils.clip_grad_norm_(self.bare.parameters(), self.parts.clip_norm)
        if self._scaler:
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self.grad_scale = float(np.ravel(self._scaler.state_dict()["scale"])[0])
        else:
            self._optimizer.step()
        self._optimizer.clear_grad()

    def state(self) -> tuple[Any, Any]:
        shared = {"model": self.bare.state_dict(), "optimizer": self._optimizer.state_dict()}
        if self._scaler:
            shared["scaler"] = self._scaler.state_dict()
        kind, words, *rest = np.random.get_state()  # noqa: NPY002  # as open_paddle seeds it
        own = {
            "buffers": dict(self.bare.named_buffers()),
            "random": random.getstate(),
            # Paddle's files turn arrays into tensors, which have no such type of number.
            "numpy": (kind, np.asarray(words).tolist(), *rest),
            "paddle": paddle.get_rng_state(),
        }
        return shared, own

    def load_state(self, shared: Any, own: Any) -> None:
        self.bare.set_state_dict(shared["model"])
        buffers = dict(self.bare.named_buffers())
        for name, value in own["buffers"].items():
            buffers[name].set_value(value)
        self._optimizer.set_state_dict(shared["optimizer"])
        if self._scaler:
            self._scaler.load_state_dict(shared["scaler"])
            self.grad_scale = float(np.ravel(shared["scaler"]["scale"])[0])
        random.setstate(own["random"])
        np.random.set_state(own["numpy"])  # noqa: NPY002  # as open_paddle seeds it
        paddle.set_rng_state(own["paddle"])


@dataclass(frozen=True)
class Reporting:
    """A data set that returns the error of a sample in the sample's place.

    Paddle's loader waits for ever for a sample that fails in its thread, and prints the traceback
    of a worker. `_to_tensors` raises the error in the training process.
    """

    dataset: Guarded

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Sequence[int]) -> object:
        try:
            return self.dataset[key]
        except Exception as error:  # noqa: BLE001  # Paddle's loader hangs at any error at all
            return error


def _collate(make: Callable[[Sequence[Any]], Any] | None, samples: Sequence[Any]) -> Any:
    """Return the batch as arrays, from which Paddle makes tensors in the training process."""
    errors = []
    for sample in samples:
        if isinstance(sample, Exception):
            errors.append(sample)
    if not errors:
        return make(samples) if make else list(stack(samples))
    first = errors[0]
    text = f"unreadable\n{first}"
    if not isinstance(first, UnreadableError):
        text = "loader\na sample cannot be made: " + "".join(traceback.format_exception(first))
    return {ERROR: np.frombuffer(text.encode(), dtype=np.uint8)}


def _to_tensors(batch: Any, *, nhwc: bool) -> Any:
    """Return nested arrays as tensors on the device; images (four dimensions) get the layout.

    The error of a loader that could not make the batch is raised.
    """
    if isinstance(batch, dict) and ERROR in batch:
        text = bytes(np.asarray(batch[ERROR]).tobytes()).decode()
        kind, _, words = text.partition("\n")
        raise UnreadableError(words) if kind == "unreadable" else ProfkitError(words)

    def take(made: DeviceArray) -> Any:
        # Another library owns the array and reuses its memory for a later batch.
        return paddle.utils.dlpack.from_dlpack(made.array).clone()

    def lay_out(value: Any) -> Any:
        if len(value.shape) == 4 and value.is_floating_point():
            return paddle.transpose(value, [0, 2, 3, 1])
        return value

    tensors = map_leaves(batch, DeviceArray, take)
    tensors = map_leaves(tensors, np.ndarray, paddle.to_tensor)
    if nhwc:
        return map_leaves(tensors, paddle.Tensor, lay_out)
    return tensors
