"""The contract of a reference system: its published settings, its parts and its options."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
    dali: bool = False
    bad_samples: str = "error"
    amp: str = ""
    channels_last: bool = False
    compile: bool = False
    until: str = ""
    max_time: float | None = None
    nan: str = "stop"
    evaluate: bool = False


@dataclass(frozen=True)
class Defaults:
    """A system's published settings, and smaller sizes for a machine without a GPU.

    Depth and width of a model are never reduced. `lr` is for a global batch of `lr_batch` samples
    and is scaled with the batch. `image_size` is the size by which the system is usually named:
    the side of its crop, the short side of its images, or the height of its crop.
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


@dataclass(frozen=True)
class Build:
    """The input of a builder.

    `config` holds every setting in its final value: `batch_size` (of one rank),
    `global_batch_size`, `image_size`, `lr`, `momentum`, `weight_decay`, `steps` (planned), `seed`,
    `world_size`, `device`. `data` is the root of the data set, or `None` for synthetic tensors.
    `bad` reads the images and handles broken ones.
    """

    config: Mapping[str, Any]
    data: Path | None
    bad: BadSamples


class Dataset(Protocol):
    """A map-style data set of one split.

    A sample is a tuple of numpy arrays and numbers, or whatever `Parts.collate` takes.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, key: Key) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """A workload built in one framework, in fp32 on the host.

    The shared loop moves, wraps, trains and records it.

    - `loss_of` takes the wrapped model and a batch on its device, and returns a scalar tensor.
    - `synthetic` makes a batch of a given number of samples, with the shapes of training.
    - `count` returns the number of samples of a batch, without padding.
    - `collate` makes a batch from samples, as nested tuples, lists and dicts of numpy arrays.
      Without it the arrays of the samples are stacked.
    - `groups` has a number for each index of `dataset`; a batch has samples of one number only.
    - `lr_at` returns the factor on the learning rate at a step.
    - `evaluate` takes the model and returns its quality figures.
    - `sync_bn` asks for batch norm over all ranks, if the device can do that.
    - `notes` go into the run's configuration: choices of the builder, and departures from the
      published settings.
    """

    model: Any
    optimizer: Any
    loss_of: Callable[[Any, Any], Any]
    dataset: Dataset | None
    synthetic: Callable[[int], Any]
    count: Callable[[Any], int]
    collate: Callable[[Sequence[Any]], Any] | None = None
    groups: Sequence[int] | None = None
    lr_at: Callable[[int], float] | None = None
    clip_norm: float | None = None
    evaluate: Callable[[Any], Mapping[str, float]] | None = None
    sync_bn: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a training run."""

    steps: int
    first_loss: float
    last_loss: float
    stopped: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """One reference system. Its module imports no framework; its `builders` do.

    `generate` makes the small set in the published folder layout, once, and returns its root. The
    builders check a user's own tree. `dali` returns batches made by DALI, if DALI can decode the
    data. `needs` maps the packages that the data needs to the modules they provide.
    """

    name: str
    title: str
    data: str
    published: Mapping[str, Any]
    defaults: Defaults
    builders: Mapping[str, Callable[[Build], Parts]] = field(repr=False)
    generate: Callable[[], Path] = field(repr=False)
    dali: Callable[[Build], Iterable[Any]] | None = field(default=None, repr=False)
    needs: Mapping[str, str] = field(default_factory=dict, repr=False)

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
