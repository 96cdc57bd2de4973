"""A folder of runs at a glance: what each says of itself at once, and its figures when they have been read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import ProfkitError
from profkit.trace import RunManifest
from profkit.trace.reader import find_runs


@dataclass(frozen=True)
class RunHead:
    """A run as its manifest tells of it, which costs a millisecond. `problem` says why nothing could be read."""

    path: Path
    name: str
    workload: str = ""
    framework: str = ""
    state: str = ""
    ranks: int | None = None
    device: str = ""
    precision: str = ""
    batch_size: int | None = None
    created_ns: int = 0
    problem: str = ""

    @property
    def kind(self) -> tuple[str, str, str, str, int | None]:
        """Runs of one kind differ in their number of ranks and in what was changed between them, so their throughput per rank compares."""
        return self.workload, self.framework, self.precision, self.device, self.batch_size


def list_runs(folder: Path) -> tuple[RunHead, ...]:
    """The runs in a folder, the newest first. One that cannot be read is listed with its problem."""
    heads = [read_head(path) for path in find_runs(folder)]
    return tuple(sorted(heads, key=lambda head: (-head.created_ns, head.name)))


def read_head(path: Path) -> RunHead:
    try:
        manifest = RunManifest.read(path)
    except ProfkitError as error:
        return RunHead(path, path.name, state="unreadable", problem=str(error))
    config = manifest.config
    return RunHead(
        path=path,
        name=path.name,
        workload=manifest.workload,
        framework=manifest.framework,
        state=manifest.state.value,
        ranks=manifest.world_size,
        device=_word(config, "device"),
        precision=_word(config, "precision"),
        batch_size=_count(config, "batch_size"),
        created_ns=manifest.created_ns,
    )


def _word(config: Mapping[str, Any], name: str) -> str:
    said = config.get(name)
    return said if isinstance(said, str) else ""


def _count(config: Mapping[str, Any], name: str) -> int | None:
    said = config.get(name)
    return said if isinstance(said, int) and not isinstance(said, bool) else None
