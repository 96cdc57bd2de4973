"""Ranks started by profkit, torchrun, Paddle's launcher or Slurm, and their common end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.errors import ProfkitError, UsageError
from profkit.rank import Rank
from profkit.run import ranks
from profkit.run.ranks import (
    Team,
    find_endpoint,
    find_first_failure,
    first_host,
    rank_environment,
    rank_to_join,
    run_ranks,
    slurm_rank,
    slurm_team,
    write_error,
)

PATIENCE_S = 120.0
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "20007",
    "SLURM_STEP_NODELIST": "gpu[07-08],gpu12",
}


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[07-09,12],big1", "gpu07"),
        ("node3", "node3"),
        ("a,b", "a"),
        ("rack[1-2]-n[01-04],x", "rack1-n01"),
        ("n[3]x", "n3x"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurms_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_slurms_tasks_are_ranks() -> None:
    found = slurm_rank({**SLURM, "SLURM_NTASKS": "8", "SLURM_NNODES": "2"})
    assert found is not None
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == (
        "5",
        "8",
        "1",
        "4",
    )
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("gpu07", "20007")
    assert rank_to_join(found) == Rank(5, 8, 1)


def test_one_task_a_node_starts_the_ranks_of_its_node() -> None:
    environ = {**SLURM, "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
    team = slurm_team(8, environ)
    assert team == Team(8, 2, 1, "gpu07:20007")
    assert (team.world_size, team.first) == (16, 8)
    assert slurm_team(1, environ) is None
    assert slurm_team(8, {"SLURM_NTASKS": "2", "SLURM_NNODES": "2"}) is None


@pytest.mark.parametrize("environ", [{}, {"RANK": "1"}, {"RANK": "x", "WORLD_SIZE": "2"}])
def test_a_process_that_was_started_alone_is_no_rank(environ: dict[str, str]) -> None:
    assert rank_to_join(environ) is None


def test_both_frameworks_are_told_the_same() -> None:
    told = rank_environment(2, 4, 0, 2, "10.0.0.1:29500")
    assert rank_to_join(told) == Rank(2, 4, 0)
    assert rank_to_join(
        {name: value for name, value in told.items() if name.startswith("PADDLE")}
    ) == Rank(2, 4, 0)
    assert (
        told["PADDLE_CURRENT_ENDPOINT"]
        == told["PADDLE_TRAINER_ENDPOINTS"].split(",")[2]
        == "10.0.0.1:29502"
    )


def test_a_busy_port_is_told_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            ProfkitError,
            match=rf"127\.0\.0\.1:{port}: the port is in use; .* --rdzv-endpoint",
        ):
            find_endpoint(Team(2, endpoint=f"127.0.0.1:{port}"))
    assert find_endpoint(Team(2, endpoint=f"127.0.0.1:{port}")) == f"127.0.0.1:{port}"


@pytest.mark.parametrize("endpoint", ["host", "host:", ":99", "host:0", "host:99999", "host:x"])
def test_a_malformed_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        find_endpoint(Team(2, endpoint=endpoint))


FAKE_PROFKIT = """
import os, signal, sys, time
from pathlib import Path
from profkit.run.ranks import write_error
rank = int(os.environ["RANK"])
what = sys.argv[1 + rank]
if what in {"lose", "hang on"}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
here, other = (Path(__file__).with_name(f"process{number}") for number in (rank, 1 - rank))
here.write_text(f"{os.getpid()} ")
if what in {"hang", "hang on"}: time.sleep(600)
if what == "die": os.kill(os.getpid(), signal.SIGKILL)
if what == "lose":
    while not other.exists() or " " not in other.read_text(): time.sleep(0.01)
    state = Path(f"/proc/{int(other.read_text())}/stat")
    while state.exists() and " Z " not in state.read_text(): time.sleep(0.01)
    time.sleep(0.05)
    write_error("connection closed by peer"); sys.exit(1)
if what == "fail":
    while not other.exists(): time.sleep(0.01)
    write_error("no such folder"); sys.exit(3)
"""


@pytest.mark.parametrize(
    ("what", "ended"),
    [
        (["well", "well"], (0, "")),
        (["hang", "fail"], (3, "rank 1: no such folder")),
        (["fail", "hang"], (3, "rank 0: no such folder")),
        (["hang", "die"], (1, "rank 1: it was killed by SIGKILL")),
        (["lose", "die"], (1, "rank 1: it was killed by SIGKILL")),
        (["lose", "fail"], (3, "rank 1: no such folder")),
        (["hang on", "fail"], (3, "rank 1: no such folder")),
    ],
)
def test_the_first_error_is_told_and_nobody_is_waited_for(
    what: list[str], ended: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    (tmp_path / "rank.py").write_text(FAKE_PROFKIT)
    fake.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path}/rank.py "$@"\n')
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(ranks, "GRACE_S", 0.2 if "hang on" in what else PATIENCE_S)
    assert run_ranks(Team(2), what, None, extra={}) == ended


def test_an_error_of_a_rank_that_something_else_started_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROFKIT_RANK_ERROR", raising=False)
    assert not write_error("x")


def test_the_launchers_variables_do_not_leak() -> None:
    code = (
        "import os; from profkit.run.ranks import slurm_rank; "
        "slurm_rank(dict(SLURM_PROCID='0', SLURM_NTASKS='2')); print('RANK' in os.environ)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        == "False\n"
    )


@pytest.mark.parametrize(
    ("first", "codes", "wrote", "ended_by_us", "failed"),
    [
        (1, (1, -9), [0], set(), 1),
        (0, (-6, -9), [0], set(), 1),
        (0, (-6, -9), [], set(), 1),
        (0, (-6, -15), [], set(), 0),
        (1, (-9, -9), [], set(), 1),
        (1, (-9, 1), [1], {0}, 1),
        (0, (1, 1), [1, 0], set(), 1),
        (0, (1, -15), [], set(), 0),
    ],
    ids=[
        "one lost the other",
        "it wrote so and aborted",
        "it aborted at once",
        "one aborted and the other was told to end",
        "the first that was seen",
        "one had to be killed",
        "the first to write its error",
        "no error",
    ],
)
def test_the_rank_that_failed_of_itself_is_named(
    tmp_path: Path,
    first: int,
    codes: tuple[int, ...],
    wrote: list[int],
    ended_by_us: set[int],
    failed: int,
) -> None:
    errors = [tmp_path / f"rank{number}" for number in range(len(codes))]
    for time_ns, number in enumerate(wrote, 1):
        errors[number].write_text("connection closed by peer")
        os.utime(errors[number], ns=(time_ns, time_ns))
    assert find_first_failure(first, codes, ended_by_us, errors) == failed
