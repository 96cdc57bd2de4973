"""Starts the ranks of a reference system on this machine, and ends them together.

Each rank is `profkit trace` again, told by the variables that torchrun and Paddle's launcher use
which rank it is. The same variables make `torchrun -m profkit trace ...` and `srun profkit trace
...` work, where something else has started the ranks.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.instrument.frameworks.base import Place
from profkit.run.launch import describe_end, forwarding
from profkit.text import safe_text

RUN_VARIABLE = "PROFKIT_TRACE_RUN"
ERROR_VARIABLE = "PROFKIT_RANK_ERROR"
POLL_S = 0.05
GRACE_S = 5.0
SLURM_PORTS = 20_000
"""Ports from here on, one for each job number, so that jobs on one host do not meet each other."""


@dataclass(frozen=True)
class Team:
    """The ranks that one node starts: `count` of them, of `nodes` nodes that all start as many."""

    count: int
    nodes: int = 1
    node: int = 0
    endpoint: str = ""

    @property
    def world_size(self) -> int:
        return self.count * self.nodes

    @property
    def first(self) -> int:
        return self.count * self.node


def place_of_this_process(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Which rank something has made this process; `None` for one that was started alone."""
    for rank, size, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
    ):
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return Place(int(environ[rank]), int(environ[size]), int(environ.get(local) or 0))
    return None


def slurm_team(gpus: int, environ: Mapping[str, str] = os.environ) -> Team | None:
    """Where Slurm started one task on each of several nodes, and each is to start `gpus` ranks."""
    tasks, nodes = _number(environ, "SLURM_NTASKS"), _number(environ, "SLURM_NNODES")
    if "SLURM_PROCID" not in environ or tasks < 2 or tasks != nodes or gpus < 2:
        return None
    return Team(gpus, nodes, _number(environ, "SLURM_NODEID"), _slurm_endpoint(environ))


def slurm_rank(environ: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """The variables of a rank, where Slurm's tasks are the ranks themselves."""
    tasks = _number(environ, "SLURM_NTASKS")
    if "SLURM_PROCID" not in environ or tasks < 2:
        return None
    rank, local = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_LOCALID")
    return rank_environment(
        rank,
        tasks,
        local,
        max(1, tasks // max(1, _number(environ, "SLURM_NNODES"))),
        _slurm_endpoint(environ),
    )


def _slurm_endpoint(environ: Mapping[str, str]) -> str:
    hosts = (
        environ.get("SLURM_STEP_NODELIST")
        or environ.get("SLURM_JOB_NODELIST")
        or environ.get("SLURM_NODELIST", "")
    )
    return f"{first_host(hosts) or 'localhost'}:{SLURM_PORTS + _number(environ, 'SLURM_JOB_ID') % SLURM_PORTS}"


def first_host(hosts: str) -> str:
    """The first of Slurm's list: `gpu[07-09,12],big1` gives `gpu07`."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts.strip())
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", name[0]) if name else ""


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdigit() else 0


def rank_environment(
    rank: int, world_size: int, local: int, local_size: int, endpoint: str
) -> dict[str, str]:
    """What torch and Paddle ask the environment for; Paddle wants an address of each rank, and uses the first."""
    host, _, port = endpoint.rpartition(":")
    addresses = [f"{host}:{int(port) + number}" for number in range(world_size)]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(world_size),
        "PADDLE_RANK_IN_NODE": str(local),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
        "PADDLE_CURRENT_ENDPOINT": addresses[rank],
        "PADDLE_MASTER": endpoint,
        "FLAGS_selected_gpus": str(local),
    }


def check_endpoint(endpoint: str) -> None:
    """Refuse what is no `HOST:PORT`."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError(f"--rdzv-endpoint '{safe_text(endpoint)}' is not HOST:PORT")


def find_endpoint(team: Team) -> str:
    """Where the ranks meet: as it was said, after a look whether the port is free, or at a free port of this machine."""
    if not team.endpoint:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return f"127.0.0.1:{server.getsockname()[1]}"
    check_endpoint(team.endpoint)
    if team.node == 0:
        _check_free(team.endpoint)
    return team.endpoint


def _check_free(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            pass
    except OSError as error:
        why = "the port is in use" if error.errno == 98 else error.strerror or str(error)
        raise ProfkitError(
            f"{safe_text(endpoint)}: {why}; choose another place with --rdzv-endpoint HOST:PORT, on this machine for --node-rank 0"
        ) from error


def run_ranks(
    team: Team, words: Sequence[str], run: Path | None, *, extra: Mapping[str, str]
) -> tuple[int, str]:
    """Start this node's ranks, wait for them, and return the exit code with the reason of the first that failed.

    When one ends badly the others are ended within seconds.
    """
    endpoint = find_endpoint(team)
    with tempfile.TemporaryDirectory(prefix="profkit-ranks-") as folder:
        errors = [Path(folder) / f"rank{team.first + local}" for local in range(team.count)]
        with forwarding() as start:
            told = [
                _environment(team, local, endpoint, run, {**extra, ERROR_VARIABLE: str(error)})
                for local, error in enumerate(errors)
            ]
            processes = [
                start([sys.executable, "-m", "profkit", *words], env=environment)
                for environment in told
            ]
            first = _wait(processes)
            ours = _end(processes)
        if first is None:
            return ExitCode.DONE, ""
        first = _earliest(first, [process.returncode for process in processes], ours, errors)
        return _told(team.first + first, processes[first].returncode, errors[first])


def _environment(
    team: Team, local: int, endpoint: str, run: Path | None, extra: Mapping[str, str]
) -> dict[str, str]:
    environment = {
        **os.environ,
        **rank_environment(team.first + local, team.world_size, local, team.count, endpoint),
        **extra,
    }
    if run is not None:
        environment[RUN_VARIABLE] = str(run.absolute())
    return environment


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all have ended, or one has badly: its number."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [number for number, code in enumerate(codes) if code]
        if failed:
            return failed[0]
        if all(code == 0 for code in codes):
            return None
        time.sleep(POLL_S)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """Tell those that still run to end; the numbers of those that did not, and were killed."""
    killed = set()
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + GRACE_S
    for number, process in enumerate(processes):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed.add(number)
    return killed


def _earliest(first: int, codes: Sequence[int], ours: set[int], errors: Sequence[Path]) -> int:
    """Which rank failed of itself: one that a signal killed that was not `ours`, else the one that wrote its error first; the others only lost it."""
    killed = [
        number
        for number, code in enumerate(codes)
        if code < 0 and code != -signal.SIGTERM and number not in ours
    ]
    if killed and not errors[killed[0]].exists():
        return killed[0]
    written = [
        (path.stat().st_mtime_ns, number) for number, path in enumerate(errors) if path.exists()
    ]
    return min(written)[1] if written else first


def _told(rank: int, code: int, error: Path) -> tuple[int, str]:
    words = (
        error.read_text(encoding="utf-8", errors="replace").strip()
        if error.exists()
        else describe_end(code).replace("the job", "it", 1)
    )
    return (code if code > 0 else ExitCode.UNFINISHED), f"rank {rank}: {words}"


def write_error(words: str) -> bool:
    """In a rank: leave its error to the process that started it, which shows the first one only."""
    path = os.environ.get(ERROR_VARIABLE)
    if not path:
        return False
    Path(path).write_text(words, encoding="utf-8")
    return True
