"""The real driver's readings, the framework's allocator, and kernels of windows."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from profkit.collectors.allocator import AllocatorCollector
from profkit.collectors.nvml import NvmlCollector
from profkit.instrument.frameworks.base import load_framework
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.machine.doctor import CANNOT, WORKS, collector_finding, cupti
from profkit.machine.probes import probe
from profkit.run.choosing import Choice
from profkit.run.collecting import Collecting
from profkit.schema import SCHEMAS
from profkit.testing import OpenStep


def test_the_driver_tells_of_the_device() -> None:
    collector = NvmlCollector()
    assert collector.why_not() == ""
    readings = {reading.metric: reading for reading in collector.read()}
    assert readings["memory_total_bytes"].value == pytest.approx(
        torch.cuda.get_device_properties(0).total_memory, rel=0.05
    )
    assert readings["memory_total_bytes"].device == "cuda:0"
    assert 10 < readings["temperature_celsius"].value < 110
    assert readings["sm_clock_mhz"].value > 0
    assert collector_finding("nvml", collector).state in {WORKS, "partly"}


def test_the_allocators_memory_is_the_frameworks() -> None:
    held = torch.ones(1 << 20, device="cuda")
    readings = {reading.metric: reading.value for reading in AllocatorCollector().read()}
    assert readings["allocated_bytes"] == torch.cuda.memory_allocated()
    assert readings["reserved_bytes"] >= readings["allocated_bytes"] >= held.nbytes


def _windows(choice: Choice, forward: Callable[[], object]) -> list[dict[str, Any]]:
    """The kernels of a loop's windows, as rows with the names of their columns."""
    sink = MemorySink()
    recorder = Recorder(sink, is_measured=choice.is_measured(lambda step: True))
    collecting = Collecting(
        choice,
        recorder,
        load_framework("torch"),
        sink.appender("kernels"),
        sink.appender("samples"),
        device="cuda:0",
    )
    for _ in range(8):
        with OpenStep(recorder, 1), recorder.phase("forward"):
            forward()
    collecting.stop()
    names = SCHEMAS["kernels"].names[1:]
    return [dict(zip(names, row, strict=True)) for row in sink.rows["kernels"]]


def _multiply() -> Callable[[], object]:
    weights = torch.randn(512, 512, device="cuda", dtype=torch.float16)
    return lambda: torch.relu(weights @ weights).sum().item()


@pytest.mark.parametrize("operators", [False, True])
def test_kernels_of_a_window_have_their_step_phase_and_launch(operators: bool) -> None:
    rows = _windows(Choice.parse("none", "3:5", operators=operators), _multiply())
    _check_window(rows)
    assert any(row["op"] for row in rows) == operators


def _check_window(rows: list[dict[str, Any]]) -> None:
    inside = [row for row in rows if row["step"] is not None]
    assert {row["step"] for row in inside} == {3, 4}
    assert {row["device"] for row in rows} == {"cuda:0"}
    assert all(row["phase"] == "forward" for row in inside)
    assert all(row["launch_ns"] <= row["start_ns"] < row["end_ns"] for row in inside)
    matrix = [row for row in inside if row["category"] == "gemm"]
    assert matrix
    assert all(row["tensor_core"] is not False for row in matrix)


_CUPTI_ALONE = """
import json, sys
from tests.gpu.test_collectors import Choice, _multiply, _windows
rows = _windows(Choice.parse("none", "3:5", operators=False, source="cupti"), _multiply())
json.dump(rows, open(sys.argv[1], "w"))
"""


def test_cupti_gives_the_kernels_that_torchs_profiler_gives(tmp_path: Path) -> None:
    """In a process of its own: drivers admit one user of CUPTI in each."""
    finding = cupti(probe("cupti"))
    if finding.state == CANNOT:
        pytest.skip(f"{finding.why}; {finding.help}")
    found = tmp_path / "rows.json"
    subprocess.run(
        [sys.executable, "-c", _CUPTI_ALONE, str(found)],
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=240,
    )
    ours = json.loads(found.read_text())
    _check_window(ours)
    theirs = _windows(Choice.parse("none", "3:5", operators=False), _multiply())
    for column in ("name", "category", "grid", "block", "registers", "tensor_core"):
        assert sorted(str(row[column]) for row in ours) == sorted(
            str(row[column]) for row in theirs
        ), column
    took = [
        statistics.median(
            row["end_ns"] - row["start_ns"] for row in rows if row["category"] == "gemm"
        )
        for rows in (ours, theirs)
    ]
    assert took[0] == pytest.approx(took[1], rel=0.25)
