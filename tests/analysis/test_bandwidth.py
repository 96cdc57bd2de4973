"""Bandwidth uses each operation's factor and excludes waiting; kernels obey the roofline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from profkit.analysis.bandwidth import FACTORS, link_use, name_group, size_use
from profkit.analysis.ceilings import Ceilings, Links
from profkit.analysis.kernels.roofline import place_kernels
from tests.analysis.tables import rows_table

SECOND = 1_000_000_000


def _row(
    rank: int, sequence: int, start: float, end: float, size: int = 1_000, **known: Any
) -> dict[str, Any]:
    times = {
        "ready_ns": int(start * SECOND),
        "start_ns": int(start * SECOND),
        "end_ns": int(end * SECOND),
    }
    told = {
        "communicator": "0",
        "op": "all_reduce",
        "dtype": "float32",
        "group_size": 2,
        "backend": "gloo",
        "step": 0,
    }
    return {"rank": rank, "sequence": sequence, "bytes": size, **times, **told, **known}


def _use(rows: list[dict[str, Any]], ceilings: Ceilings | None = None, steps: int = 1) -> Any:
    return link_use(rows_table("collectives", rows), np.arange(steps), ceilings)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
    ],
)
def test_each_operation_has_its_factor(op: str, factor: float) -> None:
    assert FACTORS[op](4) == factor
    (use,) = _use([_row(rank, 0, 0.0, 2.0, op=op, group_size=4) for rank in range(4)])
    assert use.algorithm_bytes_per_s == pytest.approx(500)
    assert use.bus_bytes_per_s == pytest.approx(500 * factor)


@pytest.mark.parametrize("quicker", ["send", "recv"])
def test_a_message_is_one_operation_whichever_end_is_quicker(quicker: str) -> None:
    rows = []
    for number in range(2):
        for rank, op in enumerate(("send", "recv")):
            length = 1.0 if op == quicker else 2.0
            own = _row(rank, number, 4.0 * number, 4.0 * number + length, op=op)
            rows.append({**own, "communicator": "0:0>1"})
    (use,) = _use(rows)
    assert (use.op, use.messages_per_step, use.bytes_per_step) == ("send", 2.0, 2_000.0)
    assert use.bus_bytes_per_s == pytest.approx(1_000)


def test_buckets_without_ends_of_their_own_have_no_bandwidth() -> None:
    rows = []
    for rank in range(2):
        for number in range(3):
            rows.append(_row(rank, number, 1.0 + number, 5.0, bucket=number, backend="nccl"))
    (use,) = _use(rows)
    assert (use.messages_per_step, use.bytes_per_step) == (3, 3_000)
    assert (use.transfer_ns_per_step, use.bus_bytes_per_s) == (None, None)
    (size,) = size_use(rows_table("collectives", rows), np.arange(1))
    assert (size.transfer_ns, size.bus_bytes_per_s) == (None, None)


def test_waiting_for_a_late_rank_is_no_transfer() -> None:
    (use,) = _use([_row(0, 0, 0.0, 5.0), _row(1, 0, 4.0, 5.0)])
    assert use.algorithm_bytes_per_s == pytest.approx(1_000)


def test_waiting_in_the_communicators_queue_is_no_transfer() -> None:
    rows = [row for rank in (0, 1) for row in (_row(rank, 0, 0.0, 2.0), _row(rank, 1, 0.1, 4.0))]
    (use,) = _use(rows)
    assert use.transfer_ns_per_step == pytest.approx(4 * SECOND)
    assert use.algorithm_bytes_per_s == pytest.approx(500)


def test_one_that_was_disturbed_does_not_count() -> None:
    (use,) = _use(
        [
            _row(rank, number, 10.0 * number, 10.0 * number + (9 if number == 2 else 1))
            for number in range(5)
            for rank in (0, 1)
        ]
    )
    assert use.algorithm_bytes_per_s == pytest.approx(1_000)


def test_communicators_and_operations_stand_apart_those_with_most_bytes_first() -> None:
    rows = [
        _row(0, 0, 0, 1, 10, communicator="a"),
        _row(0, 0, 2, 3, 30, communicator="b"),
        _row(0, 1, 4, 5, 20, communicator="a", op="broadcast"),
    ]
    assert [(use.communicator, use.op, use.bytes_per_step) for use in _use(rows)] == [
        ("b", "all_reduce", 30),
        ("a", "broadcast", 20),
        ("a", "all_reduce", 10),
    ]


def test_per_step_is_over_the_used_steps_alone() -> None:
    rows = [_row(0, number, number, number + 0.5, step=number) for number in range(4)]
    (use,) = _use(rows, steps=2)
    assert (use.messages_per_step, use.bytes_per_step) == (1, 1_000)


def test_it_is_held_against_what_the_same_sizes_reach_alone() -> None:
    ceilings = Ceilings(links=(Links("gloo", 2, (100, 10_000), (100.0, 10_000.0)),))
    assert ceilings.links[0].at(1_000) == pytest.approx(1_000)
    assert ceilings.links[0].at(10**9) == pytest.approx(10_000)
    (use,) = _use([_row(0, 0, 0, 2), _row(1, 0, 0, 2)], ceilings)
    assert use.share_of_ceiling == pytest.approx(0.5)
    (other,) = _use([_row(0, 0, 0, 2, backend="nccl")], ceilings)
    assert other.share_of_ceiling is None
    assert (
        _use([_row(0, 0, 0, 2, op="broadcast"), _row(1, 0, 0, 2, op="broadcast")], ceilings)[
            0
        ].ceiling_bus_bytes_per_s
        is None
    )


def test_each_size_is_held_against_its_own_ceiling() -> None:
    ceilings = Ceilings(links=(Links("gloo", 2, (100, 10_000), (200.0, 5_000.0)),))
    times = [
        (0, 0.0, 1.0, 100),
        (1, 2.0, 4.0, 10_000),
        (2, 5.0, 9.0, 10_000),
        (3, 10.0, 14.0, 10_000),
    ]
    rows = [
        _row(rank, number, start, end, size)
        for number, start, end, size in times
        for rank in (0, 1)
    ]
    small, large = size_use(rows_table("collectives", rows), np.arange(2), ceilings)
    for use, told in (
        (small, (100, 0.5, SECOND, 100.0, 200.0, 0.5)),
        (large, (10_000, 1.5, 4 * SECOND, 2_500.0, 5_000.0, 0.5)),
    ):
        found = (
            use.bytes,
            use.messages_per_step,
            use.transfer_ns,
            use.bus_bytes_per_s,
            use.ceiling_bus_bytes_per_s,
            use.share_of_ceiling,
        )
        assert found == pytest.approx(told)
    (barrier,) = size_use(
        rows_table("collectives", [_row(0, 0, 0, 1, 0, op="barrier")]), np.arange(1), ceilings
    )
    assert (barrier.bus_bytes_per_s, barrier.ceiling_bus_bytes_per_s, barrier.share_of_ceiling) == (
        None,
        None,
        None,
    )


def test_an_operation_without_a_factor_and_one_rank_have_no_bus() -> None:
    assert _use([_row(0, 0, 0, 1, op="barrier")])[0].bus_bytes_per_s is None
    assert _use([_row(0, 0, 0, 1, group_size=1)])[0].bus_bytes_per_s is None
    (unknown,) = _use([_row(0, 0, 0, 1, group_size=0)])
    assert (unknown.bus_bytes_per_s, name_group(unknown)) == (None, "gloo, ranks not known")
    assert _use([_row(0, 0, 1, 1)])[0].algorithm_bytes_per_s is None
    assert _use([]) == ()


def _kernel(start: int, end: int, **known: Any) -> dict[str, Any]:
    return {"rank": 0, "device": "cuda:0", "start_ns": start, "end_ns": end, **known}


def test_a_kernel_stands_under_the_ceiling_that_holds_it_longest() -> None:
    ceilings = Ceilings(matrix_flops_per_s={"fp32": 1e9}, copy_bytes_per_s=1e9)
    kernels = [
        _kernel(0, 100, flops=80.0, bytes=10),
        _kernel(100, 200, flops=10.0, bytes=50),
        _kernel(200, 300),
        _kernel(300, 400, bytes=25),
    ]
    found = place_kernels(rows_table("kernels", kernels), ceilings)
    assert [found.bound(place) for place in range(4)] == ["arithmetic", "memory", None, "memory"]
    assert found.share.tolist() == pytest.approx([0.8, 0.5, float("nan"), 0.25], nan_ok=True)


def test_a_kernel_that_its_device_has_waited_for_is_bound_by_its_launch() -> None:
    rows = [
        _kernel(0, 10_000, launch_ns=0),
        _kernel(60_000, 62_000, launch_ns=55_000),
        _kernel(70_000, 90_000, launch_ns=0),
        _kernel(91_000, 99_000),
    ]
    found = place_kernels(rows_table("kernels", rows), Ceilings())
    assert [found.bound(place) for place in range(4)] == [None, "launch", None, None]


def test_nothing_launches_an_operator_on_the_host() -> None:
    rows = [
        _kernel(0, 10, device="cpu", launch_ns=0),
        _kernel(60_000, 62_000, device="cpu", launch_ns=60_000),
    ]
    assert not place_kernels(rows_table("kernels", rows), Ceilings()).launch_bound.any()


def test_tensor_cores_are_held_against_their_own_ceiling() -> None:
    ceilings = Ceilings(matrix_flops_per_s={"fp32": 1e9, "bf16": 4e9})
    rows = [_kernel(0, 100, flops=80.0, tensor_core=used) for used in (True, False)]
    assert place_kernels(
        rows_table("kernels", rows), ceilings, matrix_precision="bf16"
    ).share.tolist() == pytest.approx([0.2, 0.8])
