"""A folder of runs: each run's manifest at once, and its figures when they have been read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from profkit.analysis.views.run import build_run_view
from profkit.errors import ProfkitError
from profkit.frame.estimate import Estimate, divide, scale
from profkit.hangs.incidents import is_hung
from profkit.trace import Trace
from profkit.trace.folders import find_ranks, find_runs, read_run
from profkit.vocab import RunState

HUNG_STATE = "hung"
"""State in the list of a run that stood still and has not moved since."""

Kind: TypeAlias = tuple[str, str, str, str, int | None]


@dataclass(frozen=True)
class RunHead:
    """A run's manifest, which takes a millisecond to read. `problem` says why it could not be."""

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
    def kind(self) -> Kind:
        """The configuration that runs share if their throughput per rank can be compared."""
        # A trace of another tool does not name its job: it is comparable with itself alone.
        job = self.workload or self.name
        return job, self.framework, self.precision, self.device, self.batch_size


def list_runs(folder: Path) -> tuple[RunHead, ...]:
    """Return the runs in a folder, newest first; unreadable ones have a problem."""
    heads = map(read_head, find_runs(folder))
    return tuple(sorted(heads, key=lambda head: (-head.created_ns, head.name)))


def read_head(path: Path) -> RunHead:
    try:
        manifest = read_run(path, find_ranks(path))
    except ProfkitError as error:
        return RunHead(path, path.name, state="unreadable", problem=str(error))
    batch_size = manifest.config.get("batch_size")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        batch_size = None
    state = manifest.state.value
    if manifest.state is not RunState.COMPLETE and is_hung(path):
        state = HUNG_STATE
    return RunHead(
        path=path,
        name=path.name,
        workload=manifest.workload,
        framework=manifest.framework,
        state=state,
        ranks=manifest.world_size,
        device=_word(manifest.config, "device"),
        precision=_word(manifest.config, "precision"),
        batch_size=batch_size,
        created_ns=manifest.created_ns,
    )


def _word(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class RunFigures:
    """A run's speed, and its costliest loss. `problem` says why there are no figures.

    `losses_known` is false if the run cannot tell all time that is not spent on training.
    """

    throughput: Estimate
    step_ns: Estimate
    steps: int = 0
    loss: str = ""
    loss_share: float | None = None
    losses_known: bool = False
    problem: str = ""


NO_FIGURES = RunFigures(Estimate(math.nan), Estimate(math.nan))


def read_figures(path: Path) -> RunFigures:
    """Return the figures of a run, or the problem of one that cannot be read."""
    try:
        view = build_run_view(Trace.open(path))
    except ProfkitError as error:
        return RunFigures(Estimate(math.nan), Estimate(math.nan), problem=str(error))
    overview, loss, loss_share = view.overview, "", None
    if overview.losses.found:
        loss, loss_share = overview.losses.found[0].kind, overview.losses.found[0].share
    return RunFigures(
        throughput=overview.throughput,
        step_ns=overview.step_ns,
        steps=overview.steps_seen,
        loss=loss,
        loss_share=loss_share,
        losses_known=not overview.losses.missing,
    )


@dataclass(frozen=True)
class RunRow:
    """A run in the list.

    `efficiency` is its throughput per rank, relative to the run of its kind with the fewest ranks.
    """

    head: RunHead
    figures: RunFigures | None
    efficiency: Estimate | None = None


def arrange_runs(
    heads: Sequence[RunHead], figures: Mapping[Path, RunFigures], *, grouped: bool = False
) -> tuple[RunRow, ...]:
    """Return the rows of the list; if grouped, by kind, and then by number of ranks."""
    per_rank: dict[Path, Estimate] = {}
    alike: dict[Kind, list[RunHead]] = {}
    for head in heads:
        found = figures.get(head.path)
        alike.setdefault(head.kind, [])
        if found and head.ranks and found.throughput.value > 0:
            per_rank[head.path] = scale(found.throughput, 1 / head.ranks)
            alike[head.kind].append(head)
    bases: dict[Kind, Path] = {}
    for kind, group in alike.items():
        if len({head.ranks for head in group}) > 1:
            # The newest run with the fewest ranks.
            base = min(group, key=lambda head: (head.ranks or 0, -head.created_ns))
            bases[kind] = base.path
    rows = []
    for head in heads:
        efficiency = None
        if head.kind in bases and head.path in per_rank:
            efficiency = divide(per_rank[head.path], per_rank[bases[head.kind]])
        rows.append(RunRow(head, figures.get(head.path), efficiency))
    if grouped:
        kinds = list(alike)
        rows.sort(key=lambda row: (kinds.index(row.head.kind), row.head.ranks or 0))
    return tuple(rows)
