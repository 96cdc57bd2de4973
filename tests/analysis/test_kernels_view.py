"""Kernels by name: their sums agree with the rows, and what is not known stays null."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels import view as kernels_view
from profkit.analysis.kernels.calls import calls_of, kernel_instances
from profkit.analysis.kernels.view import (
    KernelsView,
    build_kernels_view,
    kernels_of,
    matrix_precision,
)
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace
from tests.analysis.tables import rows_table


def _kernel(start: int, end: int, **known: Any) -> dict[str, Any]:
    told = {
        "rank": 0,
        "device": "cuda:0",
        "stream": 7,
        "name": "sgemm",
        "category": "gemm",
        "step": 3,
    }
    return {**told, "start_ns": start, "end_ns": end, **known}


def _view(
    rows: list[dict[str, Any]], ceilings: Ceilings | None = None, **config: Any
) -> KernelsView:
    ranks = sorted({row["rank"] for row in rows})
    return build_kernels_view(
        [rows_table("kernels", [row for row in rows if row["rank"] == rank]) for rank in ranks],
        ceilings,
        config,
    )


calls = st.tuples(
    st.integers(0, 99),
    st.integers(0, 50),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 2),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, True]),
)


@given(st.lists(calls, min_size=1, max_size=30))
@settings(max_examples=150)
def test_the_groups_figures_are_those_of_their_rows(
    rows: list[tuple[int, int, str, int, int | None, bool | None]],
) -> None:
    table = [
        _kernel(start, start + length, name=name, rank=rank, step=step, tensor_core=used)
        for start, length, name, rank, step, used in rows
    ]
    view = _view(table)
    steps = {(rank, step) for _, _, _, rank, step, _ in rows if step is not None}
    assert (view.calls, view.steps, view.total_ns) == (
        len(rows),
        len(steps),
        sum(row[1] for row in rows),
    )
    assert [group.total_ns for group in view.groups] == sorted(
        (group.total_ns for group in view.groups), reverse=True
    )
    for group in view.groups:
        mine = [row for row in rows if row[2] == group.name]
        whole = sum(row[1] for row in mine)
        assert (group.calls, group.total_ns, group.longest.duration_ns) == (
            len(mine),
            whole,
            max(row[1] for row in mine),
        )
        assert group.mean_ns == pytest.approx(whole / len(mine))
        longest = [row for row in rows if row[3] == group.longest.rank][group.longest.row]
        assert longest[1:3] == (group.longest.duration_ns, group.name)
        in_steps = sum(row[1] for row in mine if row[4] is not None)
        assert group.ns_per_step == (pytest.approx(in_steps / len(steps)) if steps else None)
        told = sum(row[1] for row in mine if row[5])
        assert group.tensor_core_share == (1.0 if told else None)
    assert sum(group.share for group in view.groups) == pytest.approx(1.0 if view.total_ns else 0.0)


def test_one_name_in_two_categories_makes_two_rows() -> None:
    view = _view([_kernel(0, 5), _kernel(5, 8, category="attention")])
    assert [(group.category, group.total_ns) for group in view.groups] == [
        ("gemm", 5),
        ("attention", 3),
    ]
    assert view.category_share == {"gemm": pytest.approx(5 / 8), "attention": pytest.approx(3 / 8)}


def test_tensor_cores_are_counted_over_the_work_that_could_use_them() -> None:
    relu = {"name": "relu", "category": "elementwise", "tensor_core": False}
    view = _view(
        [
            _kernel(0, 30, name="hmma", tensor_core=True),
            _kernel(30, 40, tensor_core=False),
            _kernel(40, 99, **relu),
            _kernel(99, 104, name="odd"),
        ]
    )
    by_name = {group.name: group for group in view.groups}
    assert view.tensor_core_share == pytest.approx(0.75)
    assert (by_name["hmma"].tensor_core_share, by_name["hmma"].eligible) == (1.0, True)
    assert (by_name["sgemm"].tensor_core_share, by_name["sgemm"].eligible) == (0.0, True)
    assert (by_name["relu"].eligible, by_name["odd"].tensor_core_share) == (False, None)


def test_operators_of_a_cpu_know_neither_tensor_cores_nor_launches() -> None:
    rows = [
        _kernel(0, 10, device="cpu", launch_ns=0, tensor_core=False),
        _kernel(60_000, 60_100, device="cpu", launch_ns=60_000, tensor_core=False),
    ]
    view = _view(rows, Ceilings(copy_bytes_per_s=1e9))
    (group,) = view.groups
    assert view.noun == "operator"
    assert (
        group.tensor_core_share,
        group.eligible,
        group.launch_bound_share,
        group.queued_ratio,
        group.bound,
    ) == (None,) * 5
    assert (view.tensor_core_share, view.launched_late_share) == (None, None)


def test_a_kernel_that_its_device_waits_for_is_bound_by_its_launch() -> None:
    late = [
        _kernel(at * 100_000, at * 100_000 + 2_000, name="tiny", launch_ns=at * 100_000 - 5_000)
        for at in range(1, 5)
    ]
    queued = [
        _kernel(900_000, 990_000, launch_ns=800_000),
        _kernel(990_000, 1_000_000, launch_ns=900_000),
    ]
    view = _view([_kernel(0, 90_000, launch_ns=0), *late, *queued])
    tiny, sgemm = sorted(view.groups, key=lambda group: group.total_ns)
    assert (tiny.launch_bound_share, tiny.bound) == (1.0, "launch")
    assert tiny.queued_ratio == pytest.approx(5 / 2)
    assert (sgemm.launch_bound_share, sgemm.bound) == (0.0, None)
    # The gaps before the tiny ones, and the one before the first queued: it was launched too late.
    assert view.launched_late_share == pytest.approx((10_000 + 3 * 98_000 + 498_000) / 1_000_000)


def test_the_idle_share_doubles_when_idle_doubles() -> None:
    def share(pause: int) -> float | None:
        period = 50_000 + pause
        return _view(
            [
                _kernel(at * period, at * period + 50_000, launch_ns=at * period - 5_000)
                for at in range(200)
            ]
        ).launched_late_share

    assert share(10_000) == pytest.approx(1 / 6, rel=0.01)
    assert share(20_000) == pytest.approx(2 / 7, rel=0.01)


def test_many_distinct_names_take_memory_in_proportion() -> None:
    """A table of names times categories would take 30 GB here."""
    rows = [_kernel(at, at + 1, name=f"k{at}", category=f"c{at % 999}") for at in range(60_000)]
    tracemalloc.start()
    view = _view(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(view.groups) == 60_000
    assert peak < 1 << 30


def test_a_group_stands_under_the_ceiling_of_its_known_work() -> None:
    ceilings = Ceilings(matrix_flops_per_s={"fp32": 1e9, "fp16": 2e9}, copy_bytes_per_s=1e9)
    rows = [
        _kernel(0, 100, flops=80.0, bytes=10),
        _kernel(100, 200),
        _kernel(200, 300, name="relu", category="elementwise", bytes=50),
    ]
    rows.append(_kernel(300, 400, name="hmma", flops=100.0, tensor_core=True))
    by_name = {group.name: group for group in _view(rows, ceilings, precision="fp16").groups}
    assert {name: group.bound for name, group in by_name.items()} == {
        "sgemm": "arithmetic",
        "relu": "memory",
        "hmma": "arithmetic",
    }
    assert {name: group.ceiling_share for name, group in by_name.items()} == pytest.approx(
        {"sgemm": 0.8, "relu": 0.5, "hmma": 0.5}
    )
    assert {(group.bound, group.ceiling_share) for group in _view(rows).groups} == {(None, None)}


@pytest.mark.parametrize(
    ("said", "format_"), [("fp32", "tf32"), ("bf16", "bf16"), ("fp16", "fp16"), (None, "tf32")]
)
def test_the_runs_precision_says_what_ceiling_tensor_cores_have(
    said: str | None, format_: str
) -> None:
    assert matrix_precision({"precision": said}) == format_


def test_the_instances_of_a_kernel_are_its_longest_calls() -> None:
    rows = [
        _kernel(0, 5),
        _kernel(5, 25, phase="forward", op="aten::mm", launch_ns=1, grid=(2, 1, 1), bytes=10),
        _kernel(0, 99, name="relu"),
    ]
    first, second = kernel_instances(
        rows_table("kernels", rows), "sgemm", "gemm", Ceilings(copy_bytes_per_s=1e9), {}
    )
    assert (
        first.row,
        first.rank,
        first.duration_ns,
        first.queued_ns,
        first.phase,
        first.op,
        first.grid,
    ) == (1, 0, 20, 4, "forward", "aten::mm", (2, 1, 1))
    assert first.bound == "memory"
    assert first.ceiling_share == pytest.approx(0.5)
    assert (second.row, second.queued_ns, second.bound, second.ceiling_share) == (
        0,
        None,
        None,
        None,
    )


def test_without_kernels_there_is_nothing() -> None:
    assert _view([]) == KernelsView((), (), (), 1, 0, 0, 0.0, {}, None, None, ceilings=False)
    assert kernel_instances(rows_table("kernels", []), "sgemm", "gemm", None, {}) == ()


def test_a_run_is_grouped_over_its_ranks_or_for_one(tmp_path: Path) -> None:
    trace = Trace.open(
        synthetic_trace(tmp_path / "run", ranks=2, steps=5, kernels_per_step=40, device="cuda")
    )
    both, one = kernels_of(trace), kernels_of(trace, rank=1)
    assert (both.ranks, both.ranks_in_all, both.calls, both.devices) == (
        (0, 1),
        2,
        400,
        ("cuda:0", "cuda:1"),
    )
    assert (one.ranks, one.ranks_in_all, one.calls, one.devices) == ((1,), 2, 200, ("cuda:1",))
    first = both.groups[0]
    calls = calls_of(trace, first.name, first.category)
    assert len(calls) == first.calls
    assert (calls[0].rank, calls[0].row, calls[0].duration_ns) == (
        first.longest.rank,
        first.longest.row,
        first.longest.duration_ns,
    )
    assert {call.rank for call in calls_of(trace, first.name, first.category, rank=1)} == {1}


def test_of_a_run_with_very_many_kernels_one_rank_stands_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_view, "MOST_BYTES", 1)
    trace = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=5, kernels_per_step=40))
    view = kernels_of(trace)
    assert (view.ranks, view.ranks_in_all) == ((0,), 2)
    assert kernels_of(trace, rank=1).ranks == (1,)


def test_damage_is_told_and_the_rows_before_it_count(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=5, kernels_per_step=40)
    path = run / "r00000" / "kernels.arrows"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (problem,) = kernels_of(Trace.open(run)).problems
    assert problem.startswith("rank 0, kernels: ")
