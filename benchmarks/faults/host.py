"""Keep a framework imported and fork the ranks of jobs, because imports outlast a job.

    python benchmarks/faults/host.py torch

Reads one JSON object per line: the job's `options`, its `ranks`, and the `folder` for its trace
and its own clock, the `job`'s module, and how many other processes make `noise` while it trains.
Answers each with a line of exit codes. The ranks are
hooked as `profkit run` hooks them, and the job's code does not know it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from job_parts import OPTIONS_VARIABLE, OWN_FOLDER_VARIABLE

LOG = "log.txt"
LATE_IMPORTS = {"torch": ("torch._dynamo", "torch.profiler"), "paddle": ("paddle.io",)}
PROFKIT = (
    "pyarrow.compute",
    "pyarrow.dataset",
    "nvtx",
    "profkit.run.job",
    "profkit.run.run_folder",
    "profkit.trace",
    "profkit.collectors.poller",
    "profkit.importers.window_rows",
)
"""Modules that jobs and profkit import; importing them would take most of such a short job."""

LONGEST_S = 180
"""A rank that trains longer than this waits for what will not come, and is ended."""

AS_OTHERS = "FAULTS_AS_OTHERS"
"""If this variable is set, jobs have no priority: a busy machine is what is measured."""

PRIORITY = -20
"""Jobs have priority over other work, if allowed, so that a busy machine does not hide faults."""


def main() -> None:
    framework = sys.argv[1]
    importlib.import_module(framework)
    if AS_OTHERS not in os.environ:
        _go_first()
    for module in (*LATE_IMPORTS[framework], *PROFKIT):
        importlib.import_module(module)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        job = importlib.import_module(request["job"])
        ranks = request["ranks"]
        ports = _free_ports(ranks)
        with _noise(request.get("noise", 0)):
            pids = [
                _fork(job, request, rank, _rank_variables(rank, ranks, *ports))
                for rank in range(ranks)
            ]
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), file=answers, flush=True)


@contextlib.contextmanager
def _noise(processes: int) -> Iterator[None]:
    """Let other processes compute in bursts, with the priority of the job."""
    pids = []
    for number in range(processes):
        pid = os.fork()
        if not pid:
            _be_noise(number)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _be_noise(number: int) -> NoReturn:
    """Compute and rest in turn, about two thirds of the time, until the host ends it."""
    signal.alarm(LONGEST_S)
    rng = random.Random(number)
    while True:
        until = time.perf_counter() + rng.uniform(0.02, 0.1)
        while time.perf_counter() < until:
            pass
        time.sleep(rng.uniform(0.01, 0.05))


def _go_first() -> None:
    """Raise this process's priority, and that of its session where Linux schedules by session."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    with contextlib.suppress(OSError):
        os.nice(PRIORITY)
        Path("/proc/self/autogroup").write_text(str(PRIORITY))


def _free_ports(count: int) -> tuple[int, ...]:
    """Return one free port per rank."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


def _rank_variables(rank: int, ranks: int, *ports: int) -> dict[str, str]:
    """Return the variables that torchrun and Paddle's launcher set for a rank."""
    if ranks == 1:
        return {}
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    torch = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
    }
    paddle = {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    return {**torch, **paddle}


def _fork(job: Any, request: Mapping[str, Any], rank: int, variables: Mapping[str, str]) -> int:
    pid = os.fork()
    if not pid:
        _be_a_rank(job, request, rank, variables)
    return pid


def _be_a_rank(
    job: Any, request: Mapping[str, Any], rank: int, variables: Mapping[str, str]
) -> NoReturn:
    """Train, exit like a process of its own, and never return to the host's loop."""
    code = 1
    signal.alarm(LONGEST_S)
    try:
        log = os.open(Path(request["folder"], LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(variables)
        os.environ.update(request.get("environment", {}))
        os.environ.update(
            {
                OPTIONS_VARIABLE: json.dumps(request["options"]),
                OWN_FOLDER_VARIABLE: request["folder"],
                "PROFKIT_OUTPUT": request["folder"],
            }
        )
        sys.argv = [job.__file__]
        importlib.import_module("profkit.run.attach.arming").arm()
        job.RANK = rank
        job.main()
        code = 0
    except BaseException:  # noqa: BLE001  # the log and the exit code report every failure
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  # the host's handlers are for every fork
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
