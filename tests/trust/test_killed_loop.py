"""A loop of short steps that is killed, while it trains or hangs, loses only its last second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profkit.trace import Trace
from profkit.trace.reader import find_runs

PROMISED_NS = 1_000_000_000
"""Every row can be read once it is this old, if the job had a processor meanwhile."""

NEVER = -1

JOB = """
import os
import sys
import time

import torch

hangs_at = int(sys.argv[1])
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.utils.data.DataLoader(torch.randn(800_000, 8), batch_size=4)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step, batch in enumerate(batches):
    os.write(log, f"{os.getpid()} {time.monotonic_ns()}\\n".encode())
    if step == hangs_at:
        time.sleep(600)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.002)
"""


@pytest.mark.parametrize("hangs_at", [NEVER, 200, 203, 206], ids=["never", "200", "203", "206"])
def test_a_killed_loop_keeps_the_steps_that_are_older_than_a_second(
    tmp_path: Path, hangs_at: int
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")}
    command = [sys.executable, "-m", "profkit", "run", "--", sys.executable, "job.py"]
    with (tmp_path / "said").open("w") as said:
        launcher = subprocess.Popen(
            [*command, str(hangs_at)], cwd=tmp_path, env=env, stdout=said, stderr=said
        )
        begun = _wait_for_steps(tmp_path / "log", 200, launcher)
        time.sleep(2.5)
        killed_ns = time.monotonic_ns()
        os.kill(begun, signal.SIGKILL)
        assert launcher.wait(60), (tmp_path / "said").read_text()
    logged = [int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()]
    # A step ends where the next one begins to wait for its batch, shortly before its line.
    whole = sum(next_ns < killed_ns - PROMISED_NS for next_ns in logged[1:])
    assert whole >= 190
    (run,) = find_runs(tmp_path / "traces")
    trace = Trace.open(run)
    steps = trace.steps["step"].to_pylist()
    assert steps == list(range(len(steps)))
    assert whole <= len(steps) <= len(logged) - 1
    measured = {
        step
        for step, is_measured in zip(steps, trace.steps["instrumented"].to_pylist(), strict=True)
        if is_measured and step < whole
    }
    for phase in ("data", "forward", "backward", "optimizer"):
        numbers = zip(
            trace.spans["step"].to_pylist(), trace.spans["phase"].to_pylist(), strict=True
        )
        assert measured <= {step for step, name in numbers if name == phase}, phase


def _wait_for_steps(log: Path, count: int, launcher: subprocess.Popen[bytes]) -> int:
    """Wait until the job has begun so many steps; return its process."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit and launcher.poll() is None:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) > count:
            return int(lines[0].split()[0])
        time.sleep(0.1)
    raise AssertionError(f"the job did not train: {log.with_name('said').read_text()}")
