"""The place of a process in a job: alone, a rank, or the one that starts the ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from profkit.errors import UsageError
from profkit.text import plural

if TYPE_CHECKING:
    from profkit.commands._trace_request import TraceRequest
    from profkit.rank import Rank
    from profkit.run.ranks import Team
    from profkit.workloads.training.prepare import Seat


def own_rank(request: TraceRequest) -> Rank | None:
    """Return the rank that a launcher or Slurm made of this process, if it is one of several."""
    from profkit.run import ranks

    if not ranks.rank_to_join() and not ranks.slurm_team(request.gpus or 0):
        os.environ.update(ranks.slurm_rank() or {})
    rank = ranks.rank_to_join()
    return rank if rank and rank.world_size > 1 else None


def find_team(request: TraceRequest) -> Team | None:
    """Return the ranks to start here, or None for a single one."""
    from profkit.run import ranks

    gpus, nodes, node, endpoint = request.gpus, request.nodes, request.node, request.endpoint
    if request.ranks and gpus:
        raise UsageError("--ranks trains on the CPU and --gpus on GPUs: give one of them")
    if gpus:
        check_gpus(gpus)
    if node >= nodes:
        raise UsageError(f"--node-rank {node} is out of range: {nodes} nodes are numbered from 0")
    if nodes > 1 and not endpoint:
        raise UsageError(
            "--nnodes needs --rdzv-endpoint HOST:PORT: "
            "an address on the machine of --node-rank 0 where all ranks meet"
        )
    if endpoint:
        ranks.check_endpoint(endpoint)
    team = ranks.slurm_team(gpus or 0)
    if team is None:
        team = ranks.Team(gpus or request.ranks or 1, nodes, node, endpoint)
    return team if team.world_size > 1 else None


def check_gpus(wanted: int) -> None:
    """Refuse GPUs that are not there; never train on the CPU instead."""
    there, why = visible_gpus()
    if wanted > there:
        raise UsageError(
            f"{plural(wanted, 'GPU')} asked for, {there} here{why}; --ranks trains on the CPU"
        )


def visible_gpus() -> tuple[int, str]:
    """Return the number of GPUs that this process may use, and why there are not more."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return 0, f" (the NVIDIA driver: {error})"
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count, ""
    visible = 0
    for word in listed.split(","):
        is_missing = word.isdigit() and int(word) >= count
        if word.strip() and not is_missing:
            visible += 1
    return visible, f" (CUDA_VISIBLE_DEVICES={listed}, of {count})"


def find_seat(request: TraceRequest, rank: Rank) -> Seat:
    """Return the GPU with the rank's local number, or the CPU without GPUs or by choice."""
    from profkit.workloads.training.prepare import Seat, gpu_count

    framework = request.settings.framework
    there = 0 if request.ranks else gpu_count(framework)
    if request.gpus and not there:
        raise UsageError(
            f"{framework} sees no GPU here: its build has no CUDA, or the driver is too old for "
            "it; --ranks trains on the CPU"
        )
    if there and rank.local_rank >= there:
        raise UsageError(
            f"rank {rank.number} is number {rank.local_rank} on its machine, "
            f"which has {plural(there, 'GPU')}"
        )
    gpu = rank.local_rank if there else None
    return Seat(rank, gpu)
