"""A folder of runs at a glance: what each says of itself at once, and its figures when they have been read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.analysis.estimate import Estimate, divide, scale
from profkit.analysis.views.run import build_run_view
from profkit.errors import ProfkitError
from profkit.trace import RunManifest, Trace
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


@dataclass(frozen=True)
class RunFigures:
    """What is told of a run in a list: its speed, and the costliest finding. `problem` says why there are no figures."""

    throughput: Estimate
    step_ns: Estimate
    steps: int = 0
    finding: str = ""
    finding_share: float | None = None
    problem: str = ""


NO_FIGURES = RunFigures(Estimate(math.nan), Estimate(math.nan))


def read_figures(path: Path) -> RunFigures:
    """The figures of a run; of one that cannot be read, its problem."""
    try:
        view = build_run_view(Trace.open(path))
    except ProfkitError as error:
        return RunFigures(Estimate(math.nan), Estimate(math.nan), problem=str(error))
    top = view.losses[0] if view.losses else None
    return RunFigures(
        throughput=view.overview.throughput,
        step_ns=view.overview.step_ns,
        steps=view.overview.steps_seen,
        finding=top.kind if top else "",
        finding_share=top.share if top else None,
    )


@dataclass(frozen=True)
class RunRow:
    """A run in the list. `efficiency` is its throughput per rank against the fewest ranks among the runs of its kind."""

    head: RunHead
    figures: RunFigures | None
    efficiency: Estimate | None = None


def arrange_runs(
    heads: Sequence[RunHead], figures: Mapping[Path, RunFigures], *, grouped: bool = False
) -> tuple[RunRow, ...]:
    """The rows of the list; grouped, runs of one kind stand together, those with fewer ranks first."""
    per_rank = {head.path: _per_rank(head, figures.get(head.path)) for head in heads}
    smallest = _smallest_of_kind([head for head in heads if per_rank[head.path] is not None])
    rows = [
        RunRow(
            head,
            figures.get(head.path),
            _efficiency(per_rank[head.path], smallest.get(head.kind), per_rank),
        )
        for head in heads
    ]
    if not grouped:
        return tuple(rows)
    kinds = list(dict.fromkeys(head.kind for head in heads))
    return tuple(sorted(rows, key=lambda row: (kinds.index(row.head.kind), row.head.ranks or 0)))


def _per_rank(head: RunHead, figures: RunFigures | None) -> Estimate | None:
    if figures is None or not head.ranks or not figures.throughput.value > 0:
        return None
    return scale(figures.throughput, 1 / head.ranks)


def _smallest_of_kind(heads: Sequence[RunHead]) -> dict[Any, Path]:
    """Of each kind of which there are runs with different numbers of ranks, the newest with the fewest."""
    found: dict[Any, Path] = {}
    for kind in {head.kind for head in heads}:
        alike = [head for head in heads if head.kind == kind]
        if len({head.ranks for head in alike}) > 1:
            found[kind] = min(alike, key=lambda head: (head.ranks or 0, -head.created_ns)).path
    return found


def _efficiency(
    own: Estimate | None, smallest: Path | None, per_rank: Mapping[Path, Estimate | None]
) -> Estimate | None:
    base = per_rank[smallest] if smallest is not None else None
    return divide(own, base) if own is not None and base is not None else None
