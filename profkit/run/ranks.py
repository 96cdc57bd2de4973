"""Start the ranks of a reference system on this machine, and end them together.

Each rank is `profkit trace` again, in an environment with the variables of torchrun and of Paddle's
launcher. Therefore `torchrun -m profkit trace ...` and `srun profkit trace ...` work, too: then
something else has started the ranks.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.rank import PADDLE, SLURM, TORCHRUN, Rank, rank_of, read_number
from profkit.run.concluding import describe_end
from profkit.run.signals import forwarding
from profkit.text import safe_text

RUN_VARIABLE = "PROFKIT_TRACE_RUN"
ERROR_VARIABLE = "PROFKIT_RANK_ERROR"
POLL_S = 0.05
GRACE_S = 5.0
"""Ranks that are told to end may take this long; then they are killed."""

SLURM_PORTS = 20_000
"""Ports are taken from here on, by the job's number, so that jobs on one host do not meet."""


@dataclass(frozen=True)
class Team:
    """The ranks that one node starts: `count` of them. Each of the `nodes` starts as many."""

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


def rank_to_join(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """Return this process's rank if its environment lets a framework join the others.

    That is more than a number: only torchrun and Paddle's launcher say where the ranks meet.
    """
    for launcher in (TORCHRUN, PADDLE):
        rank = rank_of(environ, (launcher,))
        if rank is not None and environ.get(launcher.world_size, "").isdigit():
            return rank
    return None


def slurm_team(gpus: int, environ: Mapping[str, str] = os.environ) -> Team | None:
    """Return the ranks of this node if Slurm started one task per node for `gpus` ranks each."""
    tasks = read_number(environ, SLURM.world_size, 0)
    nodes = read_number(environ, "SLURM_NNODES", 0)
    if SLURM.rank not in environ or tasks < 2 or tasks != nodes or gpus < 2:
        return None
    return Team(gpus, nodes, read_number(environ, "SLURM_NODEID", 0), _slurm_endpoint(environ))


def slurm_rank(environ: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """Return the variables of a rank if Slurm's tasks are the ranks themselves."""
    tasks = read_number(environ, SLURM.world_size, 0)
    if SLURM.rank not in environ or tasks < 2:
        return None
    nodes = max(1, read_number(environ, "SLURM_NNODES", 0))
    return rank_environment(
        read_number(environ, SLURM.rank, 0),
        tasks,
        read_number(environ, SLURM.local_rank, 0),
        max(1, tasks // nodes),
        _slurm_endpoint(environ),
    )


def _slurm_endpoint(environ: Mapping[str, str]) -> str:
    """Return where Slurm's tasks meet: at the first host, at a port of the job's own."""
    hosts = (
        environ.get("SLURM_STEP_NODELIST")
        or environ.get("SLURM_JOB_NODELIST")
        or environ.get("SLURM_NODELIST", "")
    )
    port = SLURM_PORTS + read_number(environ, "SLURM_JOB_ID", 0) % SLURM_PORTS
    return f"{first_host(hosts) or 'localhost'}:{port}"


def first_host(hosts: str) -> str:
    """Return the first of Slurm's list of hosts: `gpu[07-09,12],big1` gives `gpu07`."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts.strip())
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", name[0]) if name else ""


def rank_environment(
    rank: int, world_size: int, local: int, local_size: int, endpoint: str
) -> dict[str, str]:
    """Return the variables that torch and Paddle read.

    Paddle wants an address for each rank, and uses the first.
    """
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
    """Raise a `UsageError` unless the text is `HOST:PORT`."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError(f"--rdzv-endpoint '{safe_text(endpoint)}' is not HOST:PORT")


def find_endpoint(team: Team) -> str:
    """Return where the ranks meet: at the given endpoint, or at a free port of this machine."""
    if not team.endpoint:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return f"127.0.0.1:{server.getsockname()[1]}"
    check_endpoint(team.endpoint)
    if team.node != 0:
        return team.endpoint
    host, _, port = team.endpoint.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = "the port is in use"
        raise ProfkitError(
            f"{safe_text(team.endpoint)}: {why}; choose another place "
            "with --rdzv-endpoint HOST:PORT, on this machine for --node-rank 0"
        ) from error
    return team.endpoint


def run_ranks(
    team: Team,
    words: Sequence[str],
    run: Path | None,
    *,
    extra: Mapping[str, str],
    told: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Start this node's ranks, wait for them, and end all of them when one fails.

    Returns the exit code, and the reason of the rank that failed first. `told` is called when the
    ranks are told to end.
    """
    endpoint = find_endpoint(team)
    with tempfile.TemporaryDirectory(prefix="profkit-ranks-") as folder:
        errors = [Path(folder) / f"rank{team.first + local}" for local in range(team.count)]
        processes: list[subprocess.Popen[bytes]] = []
        with forwarding(told) as start:
            for local, error in enumerate(errors):
                rank = team.first + local
                environment = {
                    **os.environ,
                    **rank_environment(rank, team.world_size, local, team.count, endpoint),
                    **extra,
                    ERROR_VARIABLE: str(error),
                }
                if run is not None:
                    environment[RUN_VARIABLE] = str(run.absolute())
                command = [sys.executable, "-m", "profkit", *words]
                processes.append(start(command, env=environment))
            first, killed = _wait_and_end(processes)
        if first is None:
            return ExitCode.DONE, ""
        codes = [process.returncode for process in processes]
        failed = find_first_failure(first, codes, killed, errors)
        reason = describe_end(codes[failed]).replace("the job", "it", 1)
        if errors[failed].exists():
            reason = errors[failed].read_text(encoding="utf-8", errors="replace").strip()
        code = codes[failed] if codes[failed] > 0 else ExitCode.UNFINISHED
        return code, f"rank {team.first + failed}: {reason}"


def _wait_and_end(processes: Sequence[subprocess.Popen[bytes]]) -> tuple[int | None, set[int]]:
    """Wait until all have ended well, or one has failed, and end those that still run then.

    Returns the number of the one that failed, and the numbers of those that had to be killed.
    """
    while True:
        codes = [process.poll() for process in processes]
        failed = next((number for number, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            break
        time.sleep(POLL_S)
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
    return failed, killed


def find_first_failure(
    first: int, codes: Sequence[int], killed: set[int], errors: Sequence[Path]
) -> int:
    """Return the number of the rank that failed of itself; the others only lost it.

    It is the one that a signal ended which we did not send, or else the first to write its error.
    A rank that loses its peer may abort, with or without an error message.
    """
    ended = []
    for number, code in enumerate(codes):
        is_own = code < 0 and code != -signal.SIGTERM and number not in killed
        if is_own and not errors[number].exists():
            ended.append((code == -signal.SIGABRT, number != first, number))
    if ended:
        return min(ended)[-1]
    written = []
    for number, path in enumerate(errors):
        if path.exists():
            written.append((path.stat().st_mtime_ns, number))
    return min(written)[1] if written else first


def write_error(words: str) -> bool:
    """Leave a rank's error to the process that started it, which shows the first one."""
    path = os.environ.get(ERROR_VARIABLE)
    if not path:
        return False
    Path(path).write_text(words, encoding="utf-8")
    return True
