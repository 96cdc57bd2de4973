"""Checkpoints: a run continues from one as if it had not been interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.text import safe_text

KEPT = 2
"""The newest checkpoints of a folder, which are kept: the last one may be a diverged model."""

SAME = ("workload", "framework", "precision", "world_size", "batch_size", "image_size", "data")
"""Settings without which a run does not continue as the one before."""

PROGRESS, SHARED = "progress.json", "shared.state"


@dataclass
class Progress:
    """The training so far. `steps_in_epoch` of the current epoch are done."""

    steps: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    elapsed_s: float = 0.0
    evaluation_s: float = 0.0
    first_losses: list[float] = field(default_factory=list)
    recent_losses: list[float] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = 0


@dataclass(frozen=True)
class Checkpoints:
    """The place of a run's checkpoints, and the one that it continues from.

    `read` and `write` are the framework's functions for files, and `gather` waits for all ranks.
    `config` are the run's settings.
    """

    folder: Path | None = None
    every: int | None = None
    resume: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[str], Any] | None = None
    write: Callable[[Any, str], Any] | None = None
    gather: Callable[[Any], list[Any]] = lambda value: [value]

    def is_due(self, steps: int) -> bool:
        return bool(self.folder and self.every) and steps % (self.every or 1) == 0

    def save(self, driver: Any, progress: Progress) -> None:
        """Write a checkpoint. It appears under its name when all ranks have written theirs."""
        if self.folder is None or self.write is None:
            return
        rank = self.config["rank"]
        place = self.folder / f"step-{progress.steps:08d}"
        partial = self.folder / f".{place.name}.partial"
        shared, own = driver.state()
        try:
            partial.mkdir(parents=True, exist_ok=True)
            self.write(own, str(partial / f"rank-{rank}.state"))
            if rank == 0:
                self.write(shared, str(partial / SHARED))
                settings = {name: self.config[name] for name in SAME}
                content = {"settings": settings, "progress": dataclasses.asdict(progress)}
                (partial / PROGRESS).write_text(json.dumps(content), encoding="utf-8")
            self.gather(None)
            if rank == 0:
                shutil.rmtree(place, ignore_errors=True)
                partial.rename(place)
                for old in find_checkpoints(self.folder)[:-KEPT]:
                    shutil.rmtree(old)
        except OSError as error:
            raise ProfkitError(
                f"{safe_text(str(place))}: the checkpoint cannot be written ({error.strerror})"
            ) from error

    def load(self, driver: Any) -> Progress | None:
        """Give the driver the state to continue from, and return the progress so far."""
        if self.resume is None or self.read is None:
            return None
        place = self.resume
        if not (place / PROGRESS).is_file():
            found = find_checkpoints(place)
            if not found:
                raise UnreadableError(f"{safe_text(str(place))}: no checkpoint there")
            place = found[-1]
        try:
            content = json.loads((place / PROGRESS).read_text(encoding="utf-8"))
            settings, progress = content["settings"], Progress(**content["progress"])
            unlike = []
            for name in SAME:
                if settings[name] != self.config[name]:
                    unlike.append(f"{name} {settings[name]} there, {self.config[name]} now")
            if not unlike:
                shared = self.read(str(place / SHARED))
                own = self.read(str(place / f"rank-{self.config['rank']}.state"))
                driver.load_state(shared, own)
        except Exception as error:  # the frameworks' readers raise any class for a torn file
            words = " ".join(str(error).split())[:200]
            raise UnreadableError(
                f"{safe_text(str(place))}: not a whole checkpoint of this workload: {words}"
            ) from error
        if unlike:
            raise UsageError(
                f"{safe_text(str(place))}: a checkpoint of other settings ({'; '.join(unlike)})"
            )
        return progress


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints of a folder, oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if re.fullmatch(r"step-\d{8,}", path.name) and (path / PROGRESS).is_file():
                found.append(path)
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))
