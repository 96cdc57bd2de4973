"""The rank of a process: one answer for the trace, the GPUs and the machine's counters."""

from __future__ import annotations

import pytest

from profkit.collectors._nvml_door import own_gpus
from profkit.collectors.host import HostCollector
from profkit.rank import Rank, local_rank_of, rank_of

SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
PADDLE = {"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "4", "PADDLE_RANK_IN_NODE": "0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "7",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
}
GPUS = list(range(8))


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (TORCHRUN, Rank(5, 8, 1)),
        (PADDLE, Rank(2, 4, 0)),
        (OPEN_MPI, Rank(7, 8, 3)),
        (SLURM, Rank(3, 8, 3)),
        (TORCHRUN | SLURM, Rank(5, 8, 1)),
        ({"RANK": "1"}, Rank(1, 1, 0)),
        ({"RANK": "x", **SLURM}, Rank(3, 8, 3)),
        ({"LOCAL_RANK": "1"}, None),
        ({}, None),
    ],
)
def test_each_launcher_names_its_ranks(environ: dict[str, str], rank: Rank | None) -> None:
    assert rank_of(environ) == rank


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        (TORCHRUN, [(1, 1)]),
        (PADDLE, [(0, 0)]),
        (OPEN_MPI, [(3, 3)]),
        (SLURM, [(3, 3)]),
        (SLURM | {"SLURM_NNODES": "2"}, [(3, 3)]),
        (TORCHRUN | SLURM, [(1, 1)]),
        ({"LOCAL_RANK": "1"}, [(1, 1)]),
    ],
)
def test_a_rank_polls_its_own_gpu_alone(
    environ: dict[str, str], gpus: list[tuple[int, int]]
) -> None:
    assert own_gpus(GPUS, environ) == gpus


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NNODES": "2"},
    ],
)
def test_the_only_process_of_a_machine_polls_all_gpus(environ: dict[str, str]) -> None:
    assert local_rank_of(environ) is None
    assert len(own_gpus(GPUS, environ)) == len(GPUS)


@pytest.mark.parametrize(("local", "speaks"), [("0", True), ("3", False)])
def test_under_slurm_the_first_local_rank_speaks_for_the_machine(
    local: str, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*TORCHRUN, *PADDLE, *OPEN_MPI):
        monkeypatch.delenv(name, raising=False)
    for name, value in (SLURM | {"SLURM_LOCALID": local}).items():
        monkeypatch.setenv(name, value)
    metrics = {reading.metric for reading in HostCollector().read()}
    assert ("cpu_busy_seconds" in metrics) == speaks
