"""The real driver's readings, the framework's allocator, and kernels of windows on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from profkit.collecting import Choice, Collecting
from profkit.collectors.allocator import AllocatorCollector
from profkit.collectors.nvml import NvmlCollector
from profkit.doctor import WORKS, collector_finding
from profkit.instrument.frameworks._base import load_framework
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.schema import SCHEMAS


def test_the_driver_tells_of_the_device() -> None:
    collector = NvmlCollector()
    assert collector.why_not() == ""
    readings = {reading.metric: reading for reading in collector.read()}
    assert readings["memory_total_bytes"].value == pytest.approx(torch.cuda.get_device_properties(0).total_memory, rel=0.05)
    assert readings["memory_total_bytes"].device == "cuda:0"
    assert 10 < readings["temperature_celsius"].value < 110
    assert readings["sm_clock_mhz"].value > 0
    assert collector_finding("nvml", collector).state in {WORKS, "partly"}


def test_the_allocators_memory_is_the_frameworks() -> None:
    held = torch.ones(1 << 20, device="cuda")
    readings = {reading.metric: reading.value for reading in AllocatorCollector().read()}
    assert readings["allocated_bytes"] == torch.cuda.memory_allocated()
    assert readings["reserved_bytes"] >= readings["allocated_bytes"] >= held.nbytes


@pytest.mark.parametrize("operators", [False, True])
def test_kernels_of_a_window_have_their_step_phase_and_launch(tmp_path: Path, operators: bool) -> None:
    sink = MemorySink()
    choice = Choice.parse("none", "3:5", operators=operators)
    recorder = Recorder(sink, is_measured=choice.is_measured(lambda step: True))
    kernels, samples = sink.appender("kernels"), sink.appender("samples")
    collecting = Collecting(choice, recorder, load_framework("torch"), kernels, samples, device="cuda:0")
    weights = torch.randn(512, 512, device="cuda", dtype=torch.float16)
    for _ in range(8):
        with recorder.step(1), recorder.phase("forward"):
            torch.relu(weights @ weights).sum().item()
    collecting.stop()
    names = SCHEMAS["kernels"].names[1:]
    rows = [dict(zip(names, row, strict=True)) for row in sink.rows["kernels"]]
    inside = [row for row in rows if row["step"] is not None]
    assert {row["step"] for row in inside} == {3, 4}
    assert {row["device"] for row in rows} == {"cuda:0"}
    assert all(row["phase"] == "forward" for row in inside)
    assert all(row["launch_ns"] <= row["start_ns"] < row["end_ns"] for row in inside)
    matrix = [row for row in inside if row["category"] == "gemm"]
    assert matrix
    assert all(row["tensor_core"] is not False for row in matrix)
    assert any(row["op"] for row in inside) == operators
