"""Measure whether launches stay slower after kernels were captured once.

    python benchmarks/gpu_jobs/after_capture.py [REPEATS]

Each way to capture has some processes, which import side by side and then wait for each other. A
step that launches many small kernels is timed before and after a window of two steps, by medians
of steps that end with the device's rest.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import subprocess
import sys
import tempfile
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
    "torch's profiler, TEARDOWN_CUPTI=0": {"TEARDOWN_CUPTI": "0"},
    "CUPTI alone": {},
}
STEPS = 80
REPEATS = 3


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


def measure(way: str, lock: str) -> None:
    """Print the medians in ms before and after a capture, and the number of kernels in it."""
    step = make_step()
    with Path(lock).open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        time_steps(step)
        before = time_steps(step)
        found = 0
        if way != "no capture":
            found = capture(step, "cupti" if "alone" in way else "profiler")
            time.sleep(1.0)
        after = time_steps(step)
    print(statistics.median(before), statistics.median(after), found)


def main() -> None:
    if len(sys.argv) > 2:
        measure(*sys.argv[1:])
        return
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS
    running = []
    with tempfile.NamedTemporaryFile() as lock:
        for _ in range(repeats):
            for way, variables in WAYS.items():
                command = [sys.executable, __file__, way, lock.name]
                environment = {**os.environ, **variables}
                process = subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, text=True
                )
                running.append((way, process))
        for way, process in running:
            found, _ = process.communicate()
            if process.returncode:
                print(f"{way:36s} ended with {process.returncode}")
                continue
            before, after, kernels = map(float, found.split()[-3:])
            share = after / before - 1
            print(
                f"{way:36s} {kernels:5.0f} kernels, {before:.3f} ms before, {after:.3f} ms after, "
                f"{100 * share:+.1f} %"
            )


if __name__ == "__main__":
    main()
