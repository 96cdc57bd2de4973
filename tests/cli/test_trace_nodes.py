"""Ranks over several machines, and ranks that Slurm starts, all on this machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from profkit.trace import Trace, verify
from profkit.trace.reader import find_runs
from profkit.vocab import Integrity, RunState

PATIENCE_S = 300
PORTS = itertools.count(20_000 + os.getpid() % 10_000, 2)
TINY = (
    "resnet50",
    "--steps",
    "3",
    "--image-size",
    "32",
    "--batch-size",
    "2",
    "--data",
    "synthetic",
)


def _free_port() -> int:
    """One that the system gives to nobody else meanwhile: below those that it chooses itself."""
    return next(port for port in PORTS if _is_free(port))


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


def _together(
    folder: Path, options: Sequence[tuple[str, ...]], variables: list[dict[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    """Start `profkit trace` as often as there are options, at once, and wait for all."""
    base = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "profkit", "trace", *TINY, *words],
            cwd=folder,
            env={**base, **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words, extra in zip(options, variables, strict=True)
    ]
    said = [process.communicate(timeout=PATIENCE_S) for process in started]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *words)
        for process, words in zip(started, said, strict=True)
    ]


def _check(folder: Path, ended: list[subprocess.CompletedProcess[str]]) -> None:
    assert [each.returncode for each in ended] == [0, 0], "\n".join(
        each.stderr[-1500:] for each in ended
    )
    (run,) = find_runs(folder / "traces")
    trace = Trace.open(run)
    assert (trace.manifest.state, trace.manifest.world_size, len(trace.ranks)) == (
        RunState.COMPLETE,
        2,
        2,
    )
    assert verify(run).state is Integrity.COMPLETE
    assert trace.collectives.num_rows > 0


def test_two_nodes_meet_and_record_one_run(tmp_path: Path) -> None:
    place = f"127.0.0.1:{_free_port()}"
    nodes = [
        ("--nnodes", "2", "--node-rank", str(node), "--rdzv-endpoint", place) for node in range(2)
    ]
    ended = _together(tmp_path, nodes, [{}, {}])
    _check(tmp_path, ended)
    assert "2 ranks" in ended[0].stdout
    assert ended[1].stdout == ""


def test_slurms_tasks_are_the_ranks_of_one_run(tmp_path: Path) -> None:
    job = {
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": str(_free_port() - 20_000),
        "SLURM_STEP_NODELIST": "localhost",
    }
    tasks = [
        {**job, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), "SLURM_NODEID": "0"}
        for task in range(2)
    ]
    _check(tmp_path, _together(tmp_path, [("--framework", "paddle")] * 2, tasks))
