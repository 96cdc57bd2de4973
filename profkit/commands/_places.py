"""Which process trains where: alone, as a rank that was started, or as the one that starts the ranks."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from profkit.errors import UsageError
from profkit.text import plural

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Place
    from profkit.run.ranks import Team
    from profkit.workloads.base import Settings
    from profkit.workloads.training.prepare import Seat


def own_place(args: argparse.Namespace) -> Place | None:
    """The rank that this process was made by a launcher, or that Slurm says it is."""
    from profkit.run import ranks

    if not ranks.place_of_this_process() and not ranks.slurm_team(wanted_gpus(args) or 0):
        os.environ.update(ranks.slurm_rank() or {})
    place = ranks.place_of_this_process()
    return place if place and place.world_size > 1 else None


def find_team(args: argparse.Namespace) -> Team | None:
    """The ranks that are to be started here; `None` for a single one."""
    from profkit.run import ranks

    gpus = wanted_gpus(args)
    if args.ranks and gpus:
        raise UsageError("--ranks trains on the CPU and --gpus on GPUs: give one of them")
    if gpus:
        check_gpus(gpus)
    if args.node_rank >= args.nnodes:
        raise UsageError(
            f"--node-rank {args.node_rank} is out of range: {args.nnodes} nodes are numbered from 0"
        )
    if args.nnodes > 1 and not args.rdzv_endpoint:
        raise UsageError(
            "--nnodes needs --rdzv-endpoint HOST:PORT: a place on the machine of --node-rank 0 where all ranks meet"
        )
    if args.rdzv_endpoint:
        ranks.check_endpoint(args.rdzv_endpoint)
    team = ranks.slurm_team(gpus or 0) or ranks.Team(
        gpus or args.ranks or 1, args.nnodes, args.node_rank, args.rdzv_endpoint
    )
    return team if team.world_size > 1 else None


def wanted_gpus(args: argparse.Namespace) -> int | None:
    """How many GPUs were asked for, by count or by ids."""
    listed = len(args.devices.split(",")) if args.devices else None
    if args.gpus and listed and args.gpus > listed:
        raise UsageError(f"--gpus {args.gpus}, but --devices lists {listed}")
    count: int | None = args.gpus or listed
    return count


def check_gpus(wanted: int) -> None:
    """Refuse GPUs that are not there; never train on the CPU instead."""
    there, why = visible_gpus()
    if wanted > there:
        raise UsageError(
            f"{plural(wanted, 'GPU')} asked for, {there} here{why}; --ranks trains on the CPU"
        )


def visible_gpus() -> tuple[int, str]:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return 0, f" (the NVIDIA driver: {error})"
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count, ""
    ids = [word for word in listed.split(",") if word.strip()]
    return len(
        [word for word in ids if not word.isdigit() or int(word) < count]
    ), f" (CUDA_VISIBLE_DEVICES={listed}, of {count})"


def find_seat(args: argparse.Namespace, settings: Settings, place: Place) -> Seat:
    """On the GPU of its local number, where there are GPUs and the CPU was not asked for."""
    from profkit.workloads.training.prepare import Seat, gpu_count

    there = 0 if args.ranks else gpu_count(settings.framework)
    if (wanted_gpus(args) or 0) > 0 and not there:
        raise UsageError(
            f"{settings.framework} sees no GPU here: its build has no CUDA, or the driver is too old for it; --ranks trains on the CPU"
        )
    if there and place.local_rank >= there:
        raise UsageError(
            f"rank {place.rank} is number {place.local_rank} on its machine, which has {plural(there, 'GPU')}"
        )
    return Seat(place.rank, place.world_size, place.local_rank if there else None)
