"""Run the missing pairs, a fault and its healthy twin, in a seeded order."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from plants import Fault

HOST = Path(__file__).with_name("host.py")
BASE, TARGET = "base", "target"
DONE = "done.json"
KERNEL_WINDOWS = "3:9"
"""The window is in the warm-up, which no figure covers. It is long enough for one slow step."""

NOISES = 3
"""Number of other processes: with the job, more than the smallest machine has cores."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GLOG_minloglevel": "2",
}


class Host:
    """A framework that stays imported and runs one job after another."""

    def __init__(self, framework: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HOST), framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **QUIET},
        )

    def run(self, request: Mapping[str, Any]) -> list[int]:
        """Return the exit codes of the job's ranks."""
        into, out = _stream(self._process.stdin), _stream(self._process.stdout)
        into.write(json.dumps(request) + "\n")
        into.flush()
        answer = out.readline()
        if not answer:
            raise SystemExit(f"the host of jobs has ended, with exit code {self._process.wait()}")
        codes: list[int] = json.loads(answer)
        return codes

    def close(self) -> None:
        _stream(self._process.stdin).close()
        self._process.wait()


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the host has pipes")
    return stream


def folder_of(work: Path, trial: int, fault: Fault) -> Path:
    return work / str(trial) / fault.name


def run_pairs(work: Path, faults: Sequence[Fault], trial: int) -> Iterator[str]:
    """Run the missing pairs, and yield a line for each."""
    order = [fault for fault in faults if not is_done(work, fault, trial)]
    random.Random(trial).shuffle(order)
    for framework in sorted({fault.framework for fault in order}):
        pending = [fault for fault in order if fault.framework == framework]
        host = Host(framework)
        try:
            for number, fault in enumerate(pending, 1):
                outcome = _run_pair(host, work, fault, trial)
                yield f"{number} of {len(pending)} {framework}: {fault.name}, {outcome}"
        finally:
            host.close()


def is_done(work: Path, fault: Fault, trial: int) -> bool:
    """Return true if the pair was run with its present options."""
    try:
        done = json.loads((folder_of(work, trial, fault) / DONE).read_text())
    except FileNotFoundError:
        return False
    return bool(done == {side: job_of(fault, side, trial) for side in (BASE, TARGET)})


def job_of(fault: Fault, side: str, trial: int) -> dict[str, Any]:
    """Return the request to the host."""
    options = fault.options(planted=side == TARGET)
    windows = {"PROFKIT_KERNELS": KERNEL_WINDOWS, "PROFKIT_OPS": "1"}
    request: dict[str, Any] = {
        "job": fault.job,
        "options": {**options, "seed": options.get("seed", 0) + trial},
        "ranks": fault.ranks,
        "environment": windows if fault.kernels else {"PROFKIT_KERNELS": ""},
    }
    if fault.noise in (side, "both"):
        request["noise"] = NOISES
    return request


def _run_pair(host: Host, work: Path, fault: Fault, trial: int) -> str:
    """Run the twins in one order, and in the other order in the next trial.

    A slow change of the machine then favours neither.
    """
    folder = folder_of(work, trial, fault)
    shutil.rmtree(folder, ignore_errors=True)
    sides = [BASE, TARGET]
    if (random.Random(fault.name).random() < 0.5) is (trial % 2 == 0):
        sides.reverse()
    began = time.monotonic()
    jobs = {side: job_of(fault, side, trial) for side in sides}
    for side, job in jobs.items():
        place = folder / side
        place.mkdir(parents=True)
        codes = host.run({**job, "folder": str(place)})
        if any(codes):
            return f"FAILED: its {side} ended with {codes}, see {place}"
    (folder / DONE).write_text(json.dumps(jobs))
    return f"{time.monotonic() - began:.1f} s"
