"""Measure whether launches stay slower after kernels were captured once.

    python benchmarks/gpu_jobs/after_capture.py

Each way to capture has a process of its own. A step that launches many small kernels is timed
before and after a window of two steps, by medians of steps that end with the device's rest.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from profkit.instrument.frameworks.base import load_framework
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.run.choosing import Choice
from profkit.run.collecting import Collecting

WAYS = {
    "no capture": {},
    "torch's profiler": {},
    "torch's profiler, TEARDOWN_CUPTI=1": {"TEARDOWN_CUPTI": "1"},
    "CUPTI alone": {},
}
STEPS = 150


def make_step() -> Callable[[], None]:
    from models import make_model

    model = make_model("small", "none").cuda()
    tokens = torch.randint(256, (8, 128), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def time_steps(step: Callable[[], None]) -> list[float]:
    lengths = []
    for _ in range(STEPS):
        began = time.perf_counter_ns()
        step()
        lengths.append((time.perf_counter_ns() - began) / 1e6)
    return lengths


def capture(step: Callable[[], None], source: str) -> int:
    """Capture the kernels of two of eight steps; return how many there were."""
    sink = MemorySink()
    recorder = Recorder(sink)
    collecting = Collecting(
        Choice.parse("none", "3:5", operators=False, source=source),
        recorder,
        load_framework("torch"),
        sink.appender("kernels"),
        sink.appender("samples"),
        device="cuda:0",
    )
    for _ in range(8):
        with recorder.step(1), recorder.phase("forward"):
            step()
    collecting.stop()
    return len(sink.rows["kernels"])


def measure(way: str) -> None:
    step = make_step()
    time_steps(step)
    before = time_steps(step)
    found = 0
    if way != "no capture":
        found = capture(step, "cupti" if "alone" in way else "profiler")
        time.sleep(1.0)
    after = time_steps(step)
    medians = [statistics.median(lengths) for lengths in (before, after)]
    print(f"{way:36s} {found:6d} kernels, {medians[0]:.3f} ms before, {medians[1]:.3f} ms after")


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    for way, variables in WAYS.items():
        command = [sys.executable, __file__, way]
        subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    main()
