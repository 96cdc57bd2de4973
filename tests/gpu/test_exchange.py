"""The gradient exchange of two processes over CUDA tensors, and screens against one another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from profkit.trace import Trace

JOB = Path(__file__).parent / "exchange_job.py"


def _profkit(*words: object) -> str:
    command = [sys.executable, "-m", "profkit", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


def _record(parent: Path, late_ms: int) -> Path:
    """Run the job on two ranks under `profkit run`; return its run's folder."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
    words = [sys.executable, "-m", "profkit", "run", "-o", str(parent), "--", sys.executable]
    environment = {**os.environ, "LATE_MS": str(late_ms)}
    subprocess.run([*words, *launcher], env=environment, timeout=300, check=True)
    (run,) = parent.iterdir()
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {late: _record(tmp_path_factory.mktemp(f"late{late}"), late) for late in (0, 20)}


def test_gloo_over_cuda_tensors_is_recorded_per_bucket(runs: dict[int, Path]) -> None:
    trace = Trace.open(runs[0])
    buckets = trace.collectives.filter(trace.collectives["bucket"].is_valid())
    assert set(buckets["backend"].to_pylist()) == {"gloo"}
    assert sorted(set(buckets["rank"].to_pylist())) == [0, 1]
    length = pc.subtract(buckets["end_ns"], buckets["start_ns"])
    assert pc.min(length).as_py() > 0


def test_a_late_rank_makes_the_other_wait_that_long(runs: dict[int, Path]) -> None:
    waits = {}
    for late, run in runs.items():
        trace = Trace.open(run)
        spans = trace.spans.filter(pc.equal(trace.spans["name"].cast("string"), "exposed"))
        own = spans.filter(pc.equal(spans["rank"], 0))
        length = pc.subtract(own["device_end_ns"], own["device_start_ns"]).drop_null()
        waits[late] = pc.quantile(length, 0.5)[0].as_py() / 1e6
    assert waits[20] - waits[0] == pytest.approx(20, abs=3)


def test_report_and_explain_show_the_same_device_time(runs: dict[int, Path]) -> None:
    report: dict[str, Any] = json.loads(_profkit("report", runs[20], "--json"))
    explained: dict[str, Any] = json.loads(_profkit("explain", runs[0], runs[20], "--json"))
    shown = {row["phase"]: row["step_ms"]["value"] * 1e6 for row in report["phases"]}
    samples = explained["samples_per_step_and_gpu"]
    rows = {row["name"]: row["target_ns"]["value"] * samples for row in explained["rows"]}
    compared = shown.keys() & rows.keys()
    assert {"forward", "backward", "optimizer"} <= compared
    for phase in compared:
        assert shown[phase] == pytest.approx(rows[phase], abs=1), phase
