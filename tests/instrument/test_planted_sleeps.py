"""20 ms slept in one phase of every second step: that phase grows by 20 ms, and no other does."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.estimate import Floats
from profkit.analysis.phases import step_times
from profkit.trace import Trace
from profkit.trace.reader import find_runs
from tests.instrument.test_run_command import JOBS, PROFKIT_RUN, TORCHRUN

PADDLE_LAUNCH = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo"]
SLEEP_MS = 20.0
CASES = [
    *((framework, ranks, phase) for framework in ("torch", "paddle") for ranks in (1, 2) for phase in ("forward", "backward", "optimizer")),
    ("torch", 1, "data"),  # not for Paddle: its loader reads ahead on a thread, and hides a part of the sleep that is not known beforehand
    ("torch", 2, "data"),
    ("torch", 1, "h2d"),
    ("torch", 2, "allreduce"),
]


def _command(framework: str, ranks: int, phase: str) -> list[str]:
    launcher = [sys.executable] if ranks == 1 else TORCHRUN if framework == "torch" else PADDLE_LAUNCH
    return [*PROFKIT_RUN, *launcher, str(JOBS / f"planted_{framework}.py"), "--phase", phase, "--sleep-ms", str(SLEEP_MS), "--steps", "48"]


@dataclass(frozen=True)
class Growth:
    """How much longer a phase is on odd steps than on even ones, by medians, and the noise of that."""

    value_ms: float
    noise_ms: float


def _growths(run: Path) -> dict[str, Growth]:
    """By phase, over the steady and measured steps, on the mean of the ranks."""
    trace = Trace.open(run)
    measured = trace.steps.filter(trace.steps["instrumented"])["step"].to_numpy()
    steady = np.unique(measured[(measured >= 8) & (measured < 47)])
    odd, even = (step_times(trace.steps, trace.spans, steady[steady % 2 == parity]) for parity in (1, 0))
    slow, quick = (dict(zip(times.names, times.parts / 1e6, strict=True)) for times in (odd, even))
    return {name: _compare(slow[name], quick.get(name, np.zeros(2))) for name in slow}


def _compare(slow: Floats, quick: Floats) -> Growth:
    spreads = [1.4826 * float(np.median(np.abs(part - np.median(part)))) / len(part) ** 0.5 for part in (slow, quick)]
    return Growth(float(np.median(slow) - np.median(quick)), 1.2533 * float(np.hypot(*spreads)))


def _slept_ms(output: str) -> float:
    """What the ranks say that they slept; Paddle's launcher keeps the other rank's word in its log."""
    return statistics.fmean(float(line.split()[-1]) for line in output.splitlines() if line.startswith("slept ms"))


@pytest.mark.parametrize(("framework", "ranks", "phase"), CASES)
def test_a_sleep_lands_in_its_phase_and_in_no_other(framework: str, ranks: int, phase: str, tmp_path: Path) -> None:
    """Within 0.5 ms, or within the noise of a machine that is busy with something else."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(_command(framework, ranks, phase), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    growths = _growths(find_runs(tmp_path / "traces")[-1])
    planted = growths.pop(phase)
    assert abs(planted.value_ms - _slept_ms(done.stdout)) <= max(0.5, 4 * planted.noise_ms), (planted, growths)
    assert {name: grown for name, grown in growths.items() if abs(grown.value_ms) > max(0.5, 4 * grown.noise_ms)} == {}
