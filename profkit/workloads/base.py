"""What a workload is: a model, its data and its published settings; and what a run of it was asked for."""

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
"""What a data set is asked for: epoch and index. All randomness of a sample comes from these and the seed."""


@dataclass(frozen=True)
class Settings:
    """What a run was asked for; `None` means the workload's own default for this machine."""

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
    """A system's settings: as published, and the sizes for a machine without a GPU. Depth and width of a model are never reduced.

    `lr` holds for a global batch of `lr_batch` samples, and is scaled with the batch. `image_size` is the side that
    the system is named by: of the crop, the short side, or the crop's height.
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
    """What a workload's parts are built from.

    `config` holds every knob in its final value: `batch_size` (of one rank), `global_batch_size`, `image_size`, `lr`,
    `momentum`, `weight_decay`, `steps` (planned), `seed`, `world_size`, `device`. `data` is the root of the set's tree, or
    `None` where tensors are to be made up. Images are read through `bad`, which knows what to do with those that are broken.
    """

    config: Mapping[str, Any]
    data: Path | None
    bad: BadSamples


class Dataset(Protocol):
    """A map-style data set of one split. A sample is a tuple of numpy arrays and numbers, or what `Parts.collate` takes."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Key) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """A workload in one framework, in fp32 on the host; the shared loop moves, wraps, trains and records it.

    `loss_of` takes the model (as it is wrapped by then) and a batch on its device, and gives a scalar tensor. `collate`
    makes a batch of samples, as nested tuples, lists and dicts of numpy arrays; without it, samples' arrays are stacked.
    `synthetic` makes such a batch out of nothing, of the sizes that training has. `count` tells a batch's samples, padding
    not counted. `groups` has a number for each index of `dataset`: a batch takes samples of one number only. `lr_at`
    gives the factor on the learning rate at a step. `evaluate` takes the model and gives its figures of merit. `sync_bn` asks
    for batch norm over all ranks, where the device can do that. `notes` go into the run's configuration: what the builder
    settled, and where it departs from the published settings.
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
    """What a training run came to."""

    steps: int
    first_loss: float
    last_loss: float
    stopped: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """One reference system. Loading its module imports no framework; its `builders` do.

    `generate` makes the small set in the published tree, once, and returns its root; `check` of a tree is done by
    the builders, who say what is missing where. `dali` gives batches as DALI makes them, where it can decode the data.
    """

    name: str
    title: str
    data: str
    published: Mapping[str, Any]
    defaults: Defaults
    builders: Mapping[str, Callable[[Build], Parts]] = field(repr=False)
    generate: Callable[[], Path] = field(repr=False)
    dali: Callable[[Build], Iterable[Any]] | None = field(default=None, repr=False)

    @property
    def frameworks(self) -> tuple[str, ...]:
        return tuple(self.builders)

    def check(self, settings: Settings) -> None:
        """Refuse a framework that this workload has not, or that is not installed."""
        if settings.framework not in self.frameworks:
            raise UsageError(
                f"{self.name} has no {settings.framework} version (it has: {', '.join(self.frameworks)})"
            )
        for package in PACKAGES[settings.framework]:
            if importlib.util.find_spec(package) is None:
                raise UsageError(
                    f"{self.name} needs {package}, which is not installed here: pip install 'profkit[{settings.framework}]'"
                )


PACKAGES: Mapping[str, tuple[str, ...]] = {"torch": ("torch", "torchvision"), "paddle": ("paddle",)}
"""The modules that each framework's workloads import."""


def wait_passively() -> None:
    """Have OpenMP's threads sleep while they wait, unless the user has said otherwise. To be called before a framework is imported.

    Threads that spin take the cores from the loader's workers, and a step on a busy machine then takes many times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
