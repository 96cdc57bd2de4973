"""Runs of jobs that `profkit run` did not start: the ranks of one launch share a folder."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os

import pytest

from profkit.rank import LAUNCHERS
from profkit.run.own_run import name_launch

OWN, PARENT = str(os.getpid()), str(os.getppid())
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_PORT": "29500",
}
SEVERAL_NODES = TORCHRUN | {"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "100"}
OTHERS = ("LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


def _launch_in(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    for launcher in LAUNCHERS:
        for name in dataclasses.astuple(launcher):
            monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return name_launch()


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, OWN),
        (
            {"MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
            OWN,
        ),  # Lightning's first rank
        (
            {"MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
            PARENT,
        ),  # and one that it has started
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, PARENT),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "100"}, PARENT),
        (SEVERAL_NODES, "100-29500"),
        (SEVERAL_NODES | {"MASTER_PORT": "40123"}, "100-40123"),
        ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, PARENT),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}, "7.3"),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, PARENT),
    ],
    ids=itertools.count(),  # not by process ids, which differ between processes that test
)
def test_ranks_of_one_launch_share_what_no_other_launch_has(
    environment: dict[str, str], launch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _launch_in(environment, monkeypatch) == launch


def test_spawned_ranks_share_a_run_and_other_spawned_processes_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        multiprocessing, "parent_process", lambda: "the process that has spawned this one"
    )
    assert _launch_in({"MASTER_PORT": "29500"}, monkeypatch) == PARENT
    assert _launch_in({}, monkeypatch) == OWN
