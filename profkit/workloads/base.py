"""The contract of a reference system: its published settings, its parts and its options."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profkit.errors import UsageError
from profkit.workloads.training.samples import BadSamples

Key = tuple[int, int]
"""Epoch and index of a sample. All randomness of the sample comes from these and the seed."""


@dataclass(frozen=True)
class Settings:
    """The options of one run; `None` stands for the workload's default on this machine."""

    framework: str
    steps: int | None = None
    epochs: int | None = None
    warmup: int | None = None
    batch_size: int | None = None
    image_size: int | None = None
    workers: int | None = None
    prefetch: int | None = None
    pin: bool | None = None
    lr: float | None = None
    seed: int = 0
    data: str = "generated"
    dali: str = ""
    bad_samples: str = "error"
    amp: str = ""
    channels_last: bool = False
    compile: bool = False
    autotune: bool | None = None
    until: str = ""
    max_time: float | None = None
    nan: str = "stop"
    evaluate: bool = False
    evaluate_every: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    resume: Path | None = None


@dataclass(frozen=True)
class Defaults:
    """A system's published settings, and smaller sizes for a machine without a GPU.

    Depth and width of a model are never reduced. `lr` is for a global batch of `lr_batch` samples
    and is scaled with the batch, except for the global batches in `lr_published`. `image_size` is
    the size by which the system is usually named: the side of its crop, the short side of its
    images, or the height of its crop. `autotune` searches the fastest convolution for each shape
    of a batch on a GPU; it is off if every batch has another shape.
    """

    image_size: int
    batch_size: int
    lr: float
    lr_batch: int
    reduced_image_size: int
    reduced_batch_size: int
    momentum: float = 0.9
    weight_decay: float = 1e-4
    steps: int = 100
    reduced_steps: int = 20
    warmup: int = 10
    reduced_warmup: int = 4
    workers: int = 8
    reduced_workers: int = 2
    lr_published: Mapping[int, float] = field(default_factory=dict)
    autotune: bool = True

    def learning_rate(self, global_batch: int) -> float:
        """Return the published rate for this global batch, or the scaled one."""
        scaled = self.lr * global_batch / self.lr_batch
        return self.lr_published.get(global_batch, scaled)


@dataclass(frozen=True)
class Build:
    """The input of a builder.

    `config` holds every setting in its final value: `batch_size` (of one rank),
    `global_batch_size`, `image_size`, `lr`, `momentum`, `weight_decay`, `steps` (planned), `seed`,
    `world_size`, `device`. `data` is the root of the data set, or `None` for synthetic tensors.
    `bad` reads the images and handles broken ones. `gather` returns the values of all ranks, in
    the order of the ranks, on each of them.
    """

    config: Mapping[str, Any]
    data: Path | None
    bad: BadSamples
    gather: Callable[[Any], list[Any]] = lambda value: [value]


Dataset = Any
"""A map-style data set of one split, with a length and an item for each `Key`.

A sample is a tuple of numpy arrays and numbers, or whatever `Parts.collate` takes.
"""


@dataclass(frozen=True)
class MixedPrecision:
    """The published settings of mixed precision: the first gradient scale, and Paddle's lists.

    The lists name operations that Paddle's level O1 computes in fp16 (`white`) or fp32 (`black`).
    """

    first_scale: float = 65_536.0
    white: tuple[str, ...] = ()
    black: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """A workload built in one framework, in fp32 on the host.

    The shared loop moves, wraps, trains and records it.

    - `loss_of` takes the wrapped model and a batch on its device, and returns a scalar tensor.
    - `synthetic` makes a batch of a given number of samples, with the shapes of training.
    - `collate` makes a batch from samples, as nested tuples, lists and dicts of numpy arrays.
      Without it the arrays of the samples are stacked.
    - `groups` has a number for each index of `dataset`; a batch has samples of one number only.
    - `lr_at` returns the factor on the learning rate at a step.
    - `evaluate` takes the model and returns its quality figures over the samples of all ranks.
    - `sync_bn` asks for batch norm over all ranks, if the device can do that.
    - `notes` go into the run's configuration: choices of the builder, and departures from the
      published settings.
    """

    model: Any
    optimizer: Any
    loss_of: Callable[[Any, Any], Any]
    dataset: Dataset | None
    synthetic: Callable[[int], Any]
    collate: Callable[[Sequence[Any]], Any] | None = None
    groups: Sequence[int] | None = None
    lr_at: Callable[[int], float] | None = None
    clip_norm: float | None = None
    evaluate: Callable[[Any], Mapping[str, float]] | None = None
    sync_bn: bool = False
    mixed: MixedPrecision = MixedPrecision()
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a training run: its own steps, without those before its checkpoint."""

    steps: int
    first_loss: float
    last_loss: float
    stopped: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """One reference system. Its module imports no framework; its `builders` do.

    `generate` makes the small set in the published folder layout, once, and returns its root. The
    builders check a user's own tree. `dali` returns batches made by DALI, if DALI can decode the
    data. `needs` maps the packages that the data needs to the modules they provide. `figures` are
    the names of the quality figures, the most important one first. `departures` are differences
    from the published runs that no option removes. `channels_last` lists the frameworks in which
    the model works on NHWC images.
    """

    name: str
    title: str
    data: str
    published: Mapping[str, Any]
    defaults: Defaults
    builders: Mapping[str, Callable[[Build], Parts]] = field(repr=False)
    generate: Callable[[], Path] = field(repr=False)
    figures: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    dali: Callable[[Build], Iterable[Any]] | None = field(default=None, repr=False)
    needs: Mapping[str, str] = field(default_factory=dict, repr=False)
    channels_last: tuple[str, ...] = ("torch",)

    @property
    def frameworks(self) -> tuple[str, ...]:
        return tuple(self.builders)

    def check(self, settings: Settings) -> None:
        """Refuse a framework that this workload lacks, and packages that are not installed."""
        if settings.framework not in self.frameworks:
            raise UsageError(
                f"{self.name} has no {settings.framework} version "
                f"(it has: {', '.join(self.frameworks)})"
            )
        needs = [(package, module, "systems") for package, module in self.needs.items()]
        needs += [(name, name, settings.framework) for name in PACKAGES[settings.framework]]
        for package, module, extra in needs:
            if importlib.util.find_spec(module) is None:
                raise UsageError(
                    f"{self.name} needs {package}, which is not installed here: "
                    f"pip install 'profkit[{extra}]'"
                )


PACKAGES: Mapping[str, tuple[str, ...]] = {"torch": ("torch", "torchvision"), "paddle": ("paddle",)}
"""The modules that each framework's workloads import."""


def wait_passively() -> None:
    """Let OpenMP's threads sleep while they wait, unless the user has set a policy.

    Call it before a framework is imported. Threads that spin take the cores from the loader's
    workers, and a step on a busy machine then takes many times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def share_cores(ranks_here: int) -> None:
    """Give each rank of this machine its share of the cores, unless the user has set a number.

    Call it before a framework is imported: Paddle sets one thread for itself when it is.
    """
    share = max(1, len(os.sched_getaffinity(0)) // max(1, ranks_here))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
