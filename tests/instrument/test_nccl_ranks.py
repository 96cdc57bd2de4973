"""The jobs that `.ci/gpu nccl` runs on one GPU, rehearsed over gloo on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.scripts import load
from tests.warm import warm_python

pytest.importorskip("torch")

Examine = Callable[[str], list[Any]]
PATIENCE_S = 300
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture(scope="module")
def examine(tmp_path_factory: pytest.TempPathFactory) -> Examine:
    """Run a scenario bare and recorded; return what is wrong about it."""
    script = load("nccl_ranks")
    work = tmp_path_factory.mktemp("nccl")
    setting = script.Setting("gloo", work, python=warm_python(), limit_s=PATIENCE_S)
    runs: dict[str, Any] = {}

    def run(scenario: str) -> list[str]:
        checks = list(script.examine(setting, scenario, runs, math.inf))
        assert checks
        return [check.line() for check in checks if not check.is_right]

    return run


@pytest.mark.jobs
@pytest.mark.measured
@pytest.mark.parametrize(
    "scenarios",
    [
        ["ddp"],
        *(
            pytest.param(names, marks=pytest.mark.nightly)
            for names in (["late"], ["no_sync", "every_sync"], ["fsdp2"], ["stuck"])
        ),
    ],
)
def test_what_is_said_of_a_job_agrees_with_its_probes(
    examine: Examine, scenarios: list[str]
) -> None:
    for scenario in scenarios:
        assert examine(scenario) == []


@pytest.mark.parametrize(
    ("rows_ms", "right"),
    [([3.0, 10.1], [True, True]), ([3.0, 11.0, 1.0], [False]), ([4.0, 11.0], [True, False])],
)
def test_collectives_are_compared_with_the_kernels_of_their_step(
    rows_ms: list[float], right: list[bool]
) -> None:
    events = [
        {"cat": "user_annotation", "name": "probed 96", "ts": 100.0, "dur": 900.0},
        {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": 110.0, "dur": 5.0},
        {"cat": "kernel", "name": "gemm", "ts": 150.0, "dur": 90.0},
        {"cat": "user_annotation", "name": "probed 97", "ts": 1000.0, "dur": 90_000.0},
        {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": 1010.0, "dur": 5.0},
        {"cat": "kernel", "name": KERNEL, "ts": 20_000.0, "dur": 10_000.0},
        {"cat": "kernel", "name": KERNEL, "ts": 2000.0, "dur": 3000.0},
    ]
    probe = load("nccl_job").read_events(events)
    assert probe == {"ops": {"all_reduce": 2}, "kernels": {"97": [[KERNEL, 3e3], [KERNEL, 1e4]]}}
    steps = [{"rank": 0, "step": step, "instrumented": True} for step in (96, 97)]
    rows = [
        {"rank": 0, "step": 97, "sequence": number, "start_ns": 0, "end_ns": int(ms * 1e6)}
        for number, ms in enumerate(rows_ms)
    ]
    checks = load("nccl_checks")
    ran = checks.Ran("ddp", "recorded", Path(), "nccl", ranks=1, code=0, took_s=1.0)
    tables = SimpleNamespace(
        steps=pa.Table.from_pylist(steps), collectives=pa.Table.from_pylist(rows)
    )
    vars(ran).update(results=[{"probe": probe}], trace=tables)
    found = list(checks.check_kernels("ddp", {"ddp recorded": ran}))
    assert [check.is_right for check in found] == right
