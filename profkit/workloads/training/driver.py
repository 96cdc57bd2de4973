"""The part of a driver and of a process group that is the same in both frameworks."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profkit.errors import ProfkitError
from profkit.workloads.base import Parts
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches, run_length

MAX_REASON = 200
"""Characters of a framework's error that are shown."""

OUT_OF_MEMORY = ("out of memory", "resourceexhausted", "alloc_failed")
"""Words of the frameworks' errors, in small letters, if a device has no memory left."""


class OutOfMemoryError(ProfkitError):
    """The device has no memory left."""


@dataclass(frozen=True)
class DeviceArray:
    """An array on the device that another library made, and that the driver takes over."""

    array: Any


class SharedDriver:
    """Feeds and evaluates a model; subclasses train it on one device, alone or as a rank.

    Subclasses have these methods:

    - `make_loader(dataset, sampler)` returns the framework's own loader.
    - `backward(loss)` computes the gradients.
    - `update(step)` steps the optimizer and clears the gradients. It sets `lr` and `grad_scale`.
    - `state()` returns the state that all ranks share, and that of this rank.
    - `load_state(shared, own)` continues from both.

    They set `bare`, the model without the wrapper for its ranks, and `model`, the wrapped one.
    `framework` is torch or paddle itself, `move` copies a batch to the device, and `autocast`
    returns the context of mixed precision. `casts_evaluation` says that the model's own weights
    are of lower precision, so that it cannot be evaluated without that context. `region` records a
    block that hooks cannot see.
    """

    framework: Any
    make_loader: Callable[[Guarded, Batches], Iterable[Any]]
    backward: Callable[[Any], None]
    update: Callable[[int], None]
    state: Callable[[], tuple[Any, Any]]
    load_state: Callable[[Any, Any], None]
    bare: Any
    model: Any
    move: Callable[[Any], Any]
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    casts_evaluation = False
    region: Callable[[str], contextlib.AbstractContextManager[None]]
    lr: float
    grad_scale: float | None = None

    def __init__(self, parts: Parts, config: Mapping[str, Any]) -> None:
        self.parts = parts
        self.config = config
        self._sampler: Batches | None = None
        self._loader: Iterable[Any] = ()

    def open_loader(self, bad: BadSamples, other: Iterable[Any] | None) -> None:
        """Open the framework's loader, unless there is another one or the data is synthetic."""
        parts, config = self.parts, self.config
        if other is not None:
            self._loader = other
        elif config["data"] == "synthetic":
            batch = self.move(parts.synthetic(config["batch_size"]))
            self._loader = itertools.repeat(batch, config["steps"])
        elif parts.dataset is None:
            raise ProfkitError("this workload has no data set of its own; use --data synthetic")
        else:
            samples = len(parts.dataset)
            self._sampler = Batches(
                samples,
                config["batch_size"],
                seed=config["seed"],
                rank=config["rank"],
                world_size=config["world_size"],
                groups=parts.groups,
                copies=run_length(config, samples, parts.groups).copies,
            )
            self._loader = self.make_loader(Guarded(parts.dataset, bad), self._sampler)

    @property
    def has_loader(self) -> bool:
        """True if the batches come from the framework's own loader."""
        return self._sampler is not None

    def batches(self, epoch: int, start: int = 0) -> Iterable[Any]:
        """Start a new pass over the training set, after its first `start` batches."""
        if self._sampler is not None:
            self._sampler.epoch, self._sampler.start = epoch, start
        return self._loader

    def value(self, loss: Any) -> float:
        """Wait for the device, and return the loss as a number."""
        return float(loss.detach())

    def forward(self, batch: Any) -> Any:
        with self.autocast():
            return self.parts.loss_of(self.model, batch)

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        """Return if any rank wants to stop, and the mean of the ranks' losses."""
        world = self.config["world_size"]
        if world == 1:
            return stop, loss
        sums = self.move(np.array([stop, loss], dtype=np.float32))
        self.framework.distributed.all_reduce(sums)
        return bool(sums[0] > 0), float(sums[1]) / world

    def evaluate(self) -> Mapping[str, float]:
        """Compute the quality figures on the validation set, alike on all ranks."""
        if self.parts.evaluate is None:
            raise ProfkitError("this workload has no evaluation; leave --evaluate out")
        self.bare.eval()
        casts = self.autocast() if self.casts_evaluation else contextlib.nullcontext()
        with casts, self.framework.no_grad():
            figures = self.parts.evaluate(self.bare)
        self.bare.train()
        return figures


@dataclass(frozen=True)
class Kit:
    """A framework with its device and seed set, joined to its other ranks."""

    framework: Any
    driver: Callable[..., SharedDriver]
    world_size: int
    threads: int
    read: Callable[[str], Any]
    """The framework's function that reads what its `save` wrote."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the framework that change its speed, for the run's configuration."""

    def share(self, text: str) -> str:
        """Return the text of rank 0 on every rank."""
        words = [text]
        if self.world_size > 1:
            self.framework.distributed.broadcast_object_list(words, src=0)
        return words[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order, on every rank."""
        if self.world_size == 1:
            return [value]
        if self.framework.__name__ == "torch":
            values = [None] * self.world_size
            self.framework.distributed.all_gather_object(values, value)
            return values
        values = []
        self.framework.distributed.all_gather_object(values, value)
        return values

    def leave(self) -> None:
        """Leave the other ranks."""
        if self.world_size > 1:
            with contextlib.suppress(Exception):  # the others may be gone already
                self.framework.distributed.destroy_process_group()


def meet(join: Callable[[], object]) -> None:
    """Form the process group; report the address if the other ranks cannot be reached."""
    try:
        join()
    except Exception as error:  # each framework's store and backend raise their own classes
        place = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise ProfkitError(f"the ranks could not meet at {place}: {reason}") from error


def describe_tf32(convolutions: bool, products: bool) -> str:
    """Return the fp32 operations for which TF32 is allowed, as the framework is set."""
    allowed = []
    if convolutions:
        allowed.append("convolutions")
    if products:
        allowed.append("matrix products")
    return " and ".join(allowed) or "off"


def explain_memory(error: Exception, batch_size: int) -> None:
    """Raise an error with the remedy, if this one is that the device has no memory left."""
    text = f"{type(error).__name__}: {error}".lower()
    if any(words in text for words in OUT_OF_MEMORY):
        raise OutOfMemoryError(
            f"out of device memory with batch {batch_size} per rank; choose a smaller --batch-size"
        ) from error


def map_leaves(batch: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the leaves of this kind in nested dicts, lists and tuples."""
    if isinstance(batch, dict):
        return {name: map_leaves(value, kind, change) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(map_leaves(value, kind, change) for value in batch)
    if isinstance(batch, kind):
        return change(batch)
    return batch
