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
            for names in (
                ["late"],
                ["no_sync", "every_sync"],
                ["fsdp2"],
                ["stuck"],
                ["tp"],
                ["pp"],
                ["experts"],
                ["exits"],
                ["raises"],
                ["sizes"],
                ["ddp", "settings"],
                ["compiled"],
            )
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


def ran(side: str, steps_ms: list[float]) -> Any:
    """A job of one rank that took so long in each of its steps."""
    checks = load("nccl_checks")
    made = checks.Ran("cost", side, Path(), "nccl", ranks=1, code=0, took_s=1.0)
    vars(made)["results"] = [{"step_ns": [int(ms * 1e6) for ms in [0.0, 0.0, *steps_ms]]}]
    return made


@pytest.mark.parametrize(
    ("recorded_ms", "again_ms", "said"),
    [
        (10.1, 10.1, "right"),
        (10.4, 10.4, "wrong"),
        (10.5, 10.0, "inconclusive"),
        (9.5, 9.5, "right"),
    ],
)
def test_a_cost_above_the_goal_is_wrong_unless_the_turns_differ_by_as_much(
    recorded_ms: float, again_ms: float, said: str
) -> None:
    jobs = {"bare": 10.0, "bare-again": 10.0, "eye": 10.0, "eye-again": 10.0}
    jobs |= {"recorded": recorded_ms, "recorded-again": again_ms}
    runs = {f"cost {side}": ran(side, [ms] * 5) for side, ms in jobs.items()}
    found = list(load("nccl_checks").check_cost("cost", runs))
    assert [check.is_right for check in found] == [said != "wrong", True]
    assert ("inconclusive" in found[0].detail) == (said == "inconclusive")


@pytest.mark.parametrize(
    ("calls", "kernels", "right"),
    [([7, 9, 0], 7, [True, True]), ([7, 9, 7], 7, [True, False]), ([7, 0, 0], 6, [False, True])],
)
def test_replays_have_kernels_and_no_calls(
    calls: list[int], kernels: int, right: list[bool]
) -> None:
    """The step of the capture has calls of its own: those that warm up."""
    checks = load("nccl_checks")
    first = 19
    steps, rows = [], []
    for step, count in enumerate(calls, first):
        steps.append({"rank": 0, "step": step, "instrumented": True})
        rows += [{"rank": 0, "step": step, "sequence": number} for number in range(count)]
    tables = SimpleNamespace(
        steps=pa.Table.from_pylist(steps), collectives=pa.Table.from_pylist(rows)
    )
    result = {
        "probe": {"kernels": {"76": [[KERNEL, 1.0]] * kernels}},
        "probed": 1,
        "replayed": {"from_step": first + 1, "kernels": 7},
    }
    runs = {}
    for side in checks.SIDES:
        made = checks.Ran("graph", side, Path(), "nccl", ranks=1, code=0, took_s=1.0)
        vars(made).update(results=[result], trace=tables)
        runs[f"graph {side}"] = made
    found = [check.is_right for check in checks.check_graph("graph", runs)]
    assert found == [right[0], right[0], right[1]]


def test_every_scenario_is_checked_and_gloo_runs_all_that_need_no_graph() -> None:
    script, checks = load("nccl_ranks"), load("nccl_checks")
    assert set(script.STEPS) == set(checks.CHECKS)
    assert set(checks.ONLY_NCCL) == {"graph"}


@pytest.mark.parametrize(
    ("dimension", "module", "right"), [("tp", None, True), ("dp", None, False), ("tp", "up", False)]
)
def test_a_collective_of_another_dimension_or_module_is_wrong(
    dimension: str, module: str | None, right: bool
) -> None:
    checks = load("nccl_checks")
    made = checks.Ran("tp", "recorded", Path(), "nccl", ranks=1, code=0, took_s=1.0)
    row = {"rank": 0, "step": 5, "sequence": 0, "op": "all_reduce"}
    vars(made)["trace"] = SimpleNamespace(
        steps=pa.Table.from_pylist([{"rank": 0, "step": 5, "instrumented": True}]),
        collectives=pa.Table.from_pylist([{**row, "dimension": dimension, "module": module}]),
    )
    found = list(checks.check_places("tp", {"tp recorded": made}))
    assert [check.is_right for check in found] == [right]


@pytest.mark.parametrize(("lost_ms", "right"), [(0.05, True), (0.5, False)])
def test_time_that_no_step_has_is_lost(lost_ms: float, right: bool) -> None:
    made = ran("recorded", [3.0] * 6)
    rows, length = [], int((3.0 - lost_ms) * 1e6)
    for step in range(8):
        rows.append({"rank": 0, "step": step, "start_ns": 0, "end_ns": length})
    vars(made)["trace"] = SimpleNamespace(steps=pa.Table.from_pylist(rows))
    found = list(load("nccl_checks").check_time("cost", {"cost recorded": made}))
    assert [check.is_right for check in found] == [right]
