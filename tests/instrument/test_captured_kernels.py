"""Windows in real jobs, with CPU operators in place of kernels.

Each has its step, phase and kind of work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.analysis.kernels.windows import exclusive_times
from profkit.analysis.overview import build_overview
from profkit.frame.intervals import union_length
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOBS = Path(__file__).parent / "jobs"


def _record(
    job: str, folder: Path, *options: str, arguments: tuple[str, ...] = ()
) -> tuple[Trace, str]:
    """The trace of a job that `profkit run` has recorded, and what the job printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")}
    environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [
        sys.executable,
        "-m",
        "profkit",
        "run",
        "-o",
        str(folder),
        "--collect",
        "none",
        *options,
        "--",
        sys.executable,
        "-W",
        "ignore",
        str(JOBS / job),
        *arguments,
    ]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    trace = Trace.open(find_runs(folder)[-1])
    assert not build_overview(trace).quality, done.stderr
    return trace, done.stdout


@pytest.fixture(scope="module")
def torch_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    pytest.importorskip("torch")
    return _record("windows_torch.py", tmp_path_factory.mktemp("torch"), "--kernels", "4:7")[0]


@pytest.fixture(scope="module")
def paddle_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    pytest.importorskip("paddle")
    return _record(
        "windows_paddle.py", tmp_path_factory.mktemp("paddle"), "--kernels", "every:6:2"
    )[0]


def _kinds(trace: Trace, phase: str) -> set[str]:
    return set(
        trace.kernels.filter(pc.equal(trace.kernels["phase"], phase))["category"].to_pylist()
    )


def _check_places(trace: Trace) -> None:
    """Each kernel began inside its step and inside a span of its phase."""
    steps = {row["step"]: row for row in trace.steps.to_pylist()}
    spans = trace.spans.filter(pc.equal(trace.spans["depth"], 0)).to_pylist()
    for kernel in trace.kernels.to_pylist():
        if kernel["step"] is not None:
            step = steps[kernel["step"]]
            assert step["start_ns"] <= kernel["start_ns"] < step["end_ns"]
        if kernel["phase"] is not None:
            around = [
                span
                for span in spans
                if span["phase"] == kernel["phase"]
                and span["start_ns"] <= kernel["start_ns"] < span["end_ns"]
            ]
            assert around, kernel


def test_torch_operators_have_their_step_phase_and_kind(torch_trace: Trace) -> None:
    kernels = torch_trace.kernels
    assert set(kernels["step"].drop_null().to_pylist()) == {4, 5, 6}
    assert set(kernels["device"].to_pylist()) == {"cpu"}
    for phase in ("forward", "backward"):
        rows = [row for row in kernels.to_pylist() if row["phase"] == phase and row["module"]]
        assert {"Sequential.0", "Sequential.3"} <= {row["module"] for row in rows}
        assert {row["line"].rpartition("/")[2] for row in rows} == {"windows_torch.py:19"}
    assert {"convolution", "gemm", "elementwise"} <= _kinds(torch_trace, "forward")
    assert {"convolution", "gemm"} <= _kinds(torch_trace, "backward")
    assert "optimizer" in set(kernels["phase"].to_pylist())
    _check_places(torch_trace)


def test_paddle_operators_have_their_step_phase_and_kind(paddle_trace: Trace) -> None:
    kernels = paddle_trace.kernels
    assert set(kernels["step"].drop_null().to_pylist()) == {6, 7, 12, 13}
    assert {"convolution", "gemm"} <= _kinds(paddle_trace, "forward")
    assert {"convolution", "gemm"} <= _kinds(paddle_trace, "backward")
    assert _kinds(paddle_trace, "optimizer") >= {"optimizer"}
    _check_places(paddle_trace)


def test_kernel_time_by_phase_is_the_time_in_which_the_device_was_busy(torch_trace: Trace) -> None:
    kernels = torch_trace.kernels
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    assert exclusive_times(kernels).sum() == union_length(start, end)


def test_the_windows_steps_are_left_out_and_their_cost_is_shown(torch_trace: Trace) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "profkit", "report", torch_trace.path, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(shown.stdout)
    assert found["steps_left_out"]["kernel window"] >= 3
    assert found["kernels"]["steps_captured"] == 3
    assert found["kernels"]["borders_ms"] > 0
    assert found["kernels"]["reading_ms"] > 0
    text = subprocess.run(
        [sys.executable, "-m", "profkit", "report", "--all", torch_trace.path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "3 steps captured on cpu" in text
    assert "kernel window" in " ".join(text.split())


def test_a_job_that_profiles_itself_keeps_its_own_capture(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace, printed = _record("windows_torch.py", tmp_path, "--kernels", "4:7", arguments=("own",))
    assert printed == "True\n"
    assert len(trace.steps) == 14
    assert isinstance(trace.kernels, pa.Table)
