"""Kernel windows open by themselves on a device, and its time ends at modules and lines."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.importers.window_rows import read_rows
from profkit.instrument.captures import Captures
from profkit.instrument.frameworks.pytorch import module_calls
from profkit.instrument.windows import automatic
from profkit.instrument.windows.automatic import AutomaticWindows
from profkit.instrument.windows.windows import Plan, WindowCapture
from profkit.trace import Trace
from tests.accelerator.jobs import MS, Job, run_ranks
from tests.accelerator.torch_fakes import on_cuda
from tests.accelerator.torch_job import TorchRank
from tests.accelerator.tracing import SimulatedProfiler
from tests.documents import report_json

JOB = Job(steps=100, layers=((5 * MS, 10 * MS), (20 * MS, 40 * MS)), optimizer_ns=5 * MS, kernels=4)


def _open_windows(rank: TorchRank) -> AutomaticWindows:
    """Wire windows to a simulated rank, as `Collecting` does in a job."""
    assert rank.recording is not None
    recorder, append = rank.recording.recorder, rank.recording.sink.appender
    profiler = SimulatedProfiler(rank.device, border_ns=10 * MS)

    def make(plan: Plan) -> WindowCapture:
        read = functools.partial(read_rows, device="cuda:0")
        kernels, samples = append("kernels"), append("samples")
        return WindowCapture(
            recorder,
            plan,
            profiler,
            kernels,
            samples,
            read_rows=read,
            clock=rank.host,
            is_called=False,
        )

    return AutomaticWindows(
        recorder,
        make,
        profiler.leaves_nothing,
        clock=rank.host,
        captures=Captures(),  # another test may capture
    )


def _train(rank: Any) -> None:
    windows, model = _open_windows(rank), rank.make_model()
    optimizer = rank.make_optimizer(model)
    for batch in rank.batches():
        loss = on_cuda(model(rank.copy(batch)).sum())
        loss.backward()
        optimizer.step()
        loss.item()
        windows.look()
    windows.finish()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "FIRST_COST_NS", 5 * MS)
        patch.setattr(module_calls, "is_compiled", lambda: False)  # another test may compile
        done = run_ranks(TorchRank, [JOB], _train, tmp_path_factory.mktemp("windows") / "run")
    assert done.run is not None
    return done.run


def test_kernels_have_their_phase_and_modules_their_line(run: Path) -> None:
    kernels = Trace.open(run).kernels.to_pylist()
    assert len({row["step"] for row in kernels}) == automatic.STEPS
    times: dict[tuple[str, str | None], int] = {}
    for row in kernels:
        key = row["phase"], row["module"]
        times[key] = times.get(key, 0) + row["end_ns"] - row["start_ns"]
    assert {key: round(ns / automatic.STEPS / MS) for key, ns in times.items()} == {
        ("h2d", None): 1,
        ("forward", "Sequential.0"): 5,
        ("forward", "Sequential.1"): 20,
        ("backward", None): 50,  # no operators stand in for those that lead to the forward
        ("optimizer", None): 5,
    }
    lines = {row["line"] for row in kernels if row["module"]}
    (line,) = lines
    file, _, number = line.rpartition(":")
    assert "model(rank.copy(batch))" in Path(file).read_text().splitlines()[int(number) - 1]


def test_the_report_ends_at_modules_and_leaves_the_windows_out(run: Path) -> None:
    found = report_json(build_overview(Trace.open(run)))
    assert found["kernels"]["steps_captured"] == automatic.STEPS
    assert found["steps_left_out"]["kernel window"] >= automatic.STEPS
    modules = found["kernels"]["by_module"]
    assert [row["module"] for row in modules] == ["Sequential.1", "Sequential.0"]
    assert modules[0]["ns_per_step"] == pytest.approx(20 * MS, rel=0.01)
    assert found["kernels"]["borders_ms"] == pytest.approx(20, abs=1)
