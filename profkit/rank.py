"""The rank of a process, by the environment variables of its launcher.

Everything in profkit that asks "which rank am I" asks here, so that all parts give one answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Launcher:
    """The environment variables in which one launcher describes a rank."""

    rank: str
    world_size: str
    local_rank: str


TORCHRUN = Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK")
PADDLE = Launcher("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE")
OPEN_MPI = Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
SLURM = Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")

LAUNCHERS = (TORCHRUN, PADDLE, OPEN_MPI, SLURM)
"""The first launcher that describes the process wins: torchrun often runs inside Slurm."""


class Rank(NamedTuple):
    """One process of a job: its number, the number of processes, its number on its machine."""

    number: int = 0
    world_size: int = 1
    local_rank: int = 0


def rank_of(
    environ: Mapping[str, str] = os.environ, launchers: Sequence[Launcher] = LAUNCHERS
) -> Rank | None:
    """Return the rank that a launcher gave this process; `None` if none of them did."""
    for launcher in launchers:
        if environ.get(launcher.rank, "").isdigit():
            return Rank(
                read_number(environ, launcher.rank, 0),
                read_number(environ, launcher.world_size, 1),
                read_number(environ, launcher.local_rank, 0),
            )
    return None


def local_rank_of(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank's number on its machine; `None` if no launcher gave it one.

    The local rank is enough: Lightning starts a script again with a local rank alone. A single
    Slurm task on a machine has no number: it may train on all of the machine's devices.
    """
    for launcher in LAUNCHERS:
        local = environ.get(launcher.local_rank, "")
        if not local.isdigit():
            continue
        if launcher is SLURM:
            tasks = read_number(environ, SLURM.world_size, 1)
            if tasks <= read_number(environ, "SLURM_NNODES", 1):  # one on each machine
                return None
        return int(local)
    return None


def read_number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the whole number that a variable holds, or `otherwise`."""
    value = environ.get(name, "")
    if value.isdigit():
        return int(value)
    return otherwise
