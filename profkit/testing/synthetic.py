"""Seeded runs of any size, written to files as a real job writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profkit.clock import Anchor
from profkit.testing.synthetic_kernels import kernel_columns
from profkit.testing.synthetic_tables import (
    CORES,
    collective_columns,
    frame_columns,
    sample_columns,
    span_columns,
    stack_columns,
    step_columns,
)
from profkit.testing.synthetic_timeline import (
    BEGIN_NS,
    PHASE_ORDER,
    Longer,
    Plan,
    Timeline,
    build_timeline,
)
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import RunState, rank_folder

__all__ = ["BEGIN_NS", "MEAN_PHASE_NS", "synthetic_trace"]

MEAN_PHASE_NS: Mapping[str, int] = {
    "data": 2_000_000,
    "h2d": 500_000,
    "forward": 12_000_000,
    "backward": 24_000_000,
    "allreduce": 3_000_000,
    "optimizer": 4_000_000,
}
"""Mean durations of phases unless a test gives others. A run of one rank has no `allreduce`."""

BEGIN_REALTIME_NS = 1_700_000_000_000_000_000
"""The wall clock's time at `BEGIN_NS`."""

RANKS_PER_HOST = 8


def synthetic_trace(
    folder: Path,
    *,
    ranks: int = 1,
    steps: int = 100,
    kernels_per_step: int = 0,
    seed: int = 0,
    phase_ns: Mapping[str, int] | None = None,
    rank_phase_ns: Mapping[int, Mapping[str, int]] | None = None,
    jitter: float = 0.05,
    steps_per_epoch: int = 50,
    batch_size: int = 32,
    last_batch_size: int | None = None,
    buckets: int = 4,
    device: str = "cpu",
    stacks: bool = False,
    workload: str = "synthetic",
    framework: str = "pytorch",
    config: Mapping[str, Any] | None = None,
    others: float | None = 0.0,
    longer: Longer | None = None,
) -> Path:
    """Write a complete run into a new `folder`. Equal arguments give equal tables.

    `phase_ns` replaces means (0 excludes a phase), `rank_phase_ns` those of single ranks. `jitter`
    is the relative spread of a duration: with 0 all steps are equal but the slow ones, the first
    three and each epoch's first. `others` are cores that other processes use; `None` is not read.
    `longer` changes the durations of a phase, or of what is `outside` all, by rank and step.
    """
    means = {**MEAN_PHASE_NS, **(phase_ns or {})}
    if unknown := sorted(means.keys() - set(PHASE_ORDER)):
        raise ValueError(f"no such phases: {', '.join(unknown)}")
    plan = Plan(
        ranks=ranks,
        steps=steps,
        kernels_per_step=kernels_per_step,
        seed=seed,
        phase_ns=means,
        rank_phase_ns=rank_phase_ns or {},
        jitter=jitter,
        steps_per_epoch=steps_per_epoch,
        batch_size=batch_size,
        last_batch_size=last_batch_size,
        buckets=buckets,
        device=device,
        longer=longer,
    )
    timeline = build_timeline(plan)
    folder.mkdir(mode=0o700, parents=True)
    for rank in range(ranks):
        _write_rank(folder, plan, timeline, rank, stacks=stacks, others=others)
    knobs = {"gpus": ranks, "batch_size": batch_size, "amp": False, **(config or {})}
    return _write_manifest(folder, timeline, workload, framework, knobs)


def _write_rank(
    folder: Path, plan: Plan, timeline: Timeline, rank: int, *, stacks: bool, others: float | None
) -> None:
    """Write the manifest and the tables of one rank."""
    files = RankFiles(folder / rank_folder(rank), rank)
    device = plan.device
    if device == "cuda":
        device = f"cuda:{rank}"
    RankManifest(
        rank=rank,
        host=f"host{rank // RANKS_PER_HOST}",
        pid=1000 + rank,
        device=device,
        anchor=Anchor(BEGIN_NS, BEGIN_REALTIME_NS, 100),
        local_rank=rank % RANKS_PER_HOST,
    ).write(files.folder)
    files.write("steps", step_columns(plan, timeline, rank))
    files.write("spans", span_columns(plan, timeline, rank))
    if plan.kernels_per_step:
        files.write("kernels", kernel_columns(plan, timeline, rank, device))
    if plan.ranks > 1:
        files.write("collectives", collective_columns(plan, timeline, rank))
    files.write("samples", sample_columns(timeline, rank, others, min(plan.ranks, RANKS_PER_HOST)))
    if stacks:
        files.write("stacks", stack_columns(timeline, rank))
        files.write("frames", frame_columns())
    files.close()


def _write_manifest(
    folder: Path,
    timeline: Timeline,
    workload: str,
    framework: str,
    config: Mapping[str, Any],
) -> Path:
    RunManifest(
        workload=workload,
        framework=framework,
        state=RunState.COMPLETE,
        world_size=len(timeline.step_end_ns),
        created_ns=BEGIN_REALTIME_NS,
        ended_ns=BEGIN_REALTIME_NS + int(timeline.step_end_ns.max()) - BEGIN_NS,
        profkit_version="0",
        config=config,
        environment={"system": "synthetic", "cpu_count": CORES, "virtual": False},
    ).write(folder)
    return folder
