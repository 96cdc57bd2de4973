"""The part of a driver and of a process group that is the same in both frameworks."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from profkit.errors import ProfkitError
from profkit.workloads.base import Parts
from profkit.workloads.training.loop import Driver
from profkit.workloads.training.samples import BadSamples, Guarded
from profkit.workloads.training.sampling import Batches

MAX_REASON = 200
"""Characters of a framework's error that are shown."""


class SharedDriver:
    """Feeds and evaluates a model; subclasses train it on one device, alone or as a rank.

    `bare` is the model without the wrapper for its ranks, `model` the wrapped one.
    """

    bare: Any
    model: Any

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
            self._sampler = Batches(
                len(parts.dataset),
                config["batch_size"],
                seed=config["seed"],
                rank=config["rank"],
                world_size=config["world_size"],
                groups=parts.groups,
            )
            self._loader = self.make_loader(Guarded(parts.dataset, bad), self._sampler)

    def make_loader(self, dataset: Guarded, sampler: Batches) -> Iterable[Any]:
        """Return the framework's own loader."""
        raise NotImplementedError

    def batches(self, epoch: int) -> Iterable[Any]:
        if self._sampler is not None:
            self._sampler.epoch = epoch
        return self._loader

    def count(self, batch: Any) -> int:
        return self.parts.count(batch)

    def move(self, batch: Any) -> Any:
        raise NotImplementedError

    def forward(self, batch: Any) -> Any:
        with self.autocast():
            return self.parts.loss_of(self.model, batch)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the framework's context of mixed precision."""
        raise NotImplementedError

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        world = self.config["world_size"]
        if world == 1:
            return stop, loss
        stops, total = self.sum_over_ranks([float(stop), loss])
        return stops > 0, total / world

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        """Add up the values of all ranks."""
        raise NotImplementedError

    def evaluate(self) -> Mapping[str, float]:
        if self.parts.evaluate is None:
            raise ProfkitError("this workload has no evaluation; leave --evaluate out")
        self.bare.eval()
        with self.no_grad():
            figures = self.parts.evaluate(self.bare)
        self.bare.train()
        return figures

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        """Return the framework's context without gradients."""
        raise NotImplementedError


class Kit:
    """A framework with its device and seed set, joined to its other ranks."""

    threads: int

    def __init__(self, distributed: Any, world_size: int) -> None:
        self.world_size = world_size
        self._distributed = distributed

    def drive(
        self, parts: Parts, config: Mapping[str, Any], bad: BadSamples, other_loader: Any
    ) -> Driver:
        """Return the driver of built parts."""
        raise NotImplementedError

    def meet(self, join: Callable[[], object]) -> None:
        """Form the process group; report the address if the other ranks cannot be reached."""
        if self.world_size == 1:
            return
        try:
            join()
        except Exception as error:  # each framework's store and backend raise their own classes
            place = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
            reason = " ".join(str(error).split())[:MAX_REASON]
            raise ProfkitError(f"the ranks could not meet at {place}: {reason}") from error

    def share(self, text: str) -> str:
        """Return the text of rank 0 on every rank."""
        words = [text]
        if self.world_size > 1:
            self._distributed.broadcast_object_list(words, src=0)
        return words[0]

    def leave(self) -> None:
        """Leave the other ranks."""
        if self.world_size > 1:
            with contextlib.suppress(Exception):  # the others may be gone already
                self._distributed.destroy_process_group()


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the leaves of nested dicts, lists and tuples."""
    if isinstance(batch, dict):
        return {name: map_leaves(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(map_leaves(value, change) for value in batch)
    return change(batch)
