"""What a workload is: a model, its data and the published settings, made ready for one run."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from profkit.errors import UsageError
from profkit.instrument.recorder import LoopRecorder


@dataclass(frozen=True)
class Settings:
    """What a run was asked for; `None` means the workload's own default for this machine."""

    framework: str
    steps: int | None = None
    warmup: int | None = None
    batch_size: int | None = None
    image_size: int | None = None
    workers: int | None = None
    lr: float | None = None
    seed: int = 0
    data: str = "generated"


@dataclass(frozen=True)
class Outcome:
    """What a training run came to."""

    steps: int
    first_loss: float
    last_loss: float


class Job(Protocol):
    """A workload made ready: data there, model built, nothing trained yet."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Every knob that changes its speed, as `run.json` holds it."""

    @property
    def device(self) -> str: ...

    def train(self, recorder: LoopRecorder, tell: Callable[[int, int, float], None]) -> Outcome:
        """Train to the end; `tell` is called after each step with its number, the total, and the loss."""


@dataclass(frozen=True)
class Workload:
    """One reference system. Loading its module imports no framework; `prepare` does."""

    name: str
    title: str
    frameworks: tuple[str, ...]
    data: str
    published: Mapping[str, Any]
    prepare: Callable[[Settings], Job] = field(repr=False)

    def check(self, settings: Settings) -> None:
        """Refuse a framework that this workload has not, or that is not installed."""
        if settings.framework not in self.frameworks:
            raise UsageError(f"{self.name} has no {settings.framework} version (it has: {', '.join(self.frameworks)})")
        for package in PACKAGES[settings.framework]:
            if importlib.util.find_spec(package) is None:
                raise UsageError(f"{self.name} needs {package}, which is not installed here: pip install 'profkit[{settings.framework}]'")


PACKAGES: Mapping[str, tuple[str, ...]] = {"torch": ("torch", "torchvision"), "paddle": ("paddle",)}
"""The modules that each framework's workloads import."""


def wait_passively() -> None:
    """Have OpenMP's threads sleep while they wait, unless the user has said otherwise. To be called before a framework is imported.

    Threads that spin take the cores from the loader's workers, and a step on a busy machine then takes many times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def data_folder(data: str) -> Path | None:
    """The folder of the user's own data set, or `None` where the set is generated."""
    return None if data == "generated" else Path(data)
