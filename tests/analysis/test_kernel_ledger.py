"""Captured steps of two runs are compared by operator, by category, and by gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from profkit.explain.evidence import Evidence
from profkit.explain.kernel_ledger import (
    BETWEEN,
    LAUNCH_IDLE,
    OTHER_IDLE,
    SYNC_STALL,
    KernelLedger,
    KernelRow,
    _idle,
    compare_kernels,
)
from profkit.explain.ledger import compare
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from tests.analysis.tables import rows_table

Kernel = tuple[str, str, str | None, int, int]
"""Name, category, operator, begin and end."""


def _rows(kernels: list[Kernel], device: str) -> pa.Table:
    common = {"rank": 0, "step": 50, "phase": "forward", "device": device, "stream": 7}
    names = ("name", "category", "op", "start_ns", "end_ns")
    return rows_table(
        "kernels", [{**common, **dict(zip(names, kernel, strict=True))} for kernel in kernels]
    )


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compares runs of which one step was captured, with these kernels in it."""
    sides = [
        Trace.open(synthetic_trace(tmp_path / str(seed), steps=100, seed=seed)) for seed in (1, 2)
    ]

    def compare_captured(
        base: list[Kernel], target: list[Kernel], device: str = "cuda:0"
    ) -> KernelLedger | None:
        tables = {
            side.path: _rows(kernels, device)
            for side, kernels in zip(sides, (base, target), strict=True)
        }
        monkeypatch.setattr(
            RankTrace,
            "select",
            lambda self, table, columns: (tables[self.folder.parent].select(list(columns)), ""),
        )
        before, after = (Evidence(side) for side in sides)
        return compare_kernels(before, after, compare(before.costs, after.costs))

    return compare_captured


def _figures(found: KernelLedger) -> dict[str, tuple[float, float]]:
    return {row.name: (row.base_ns, row.target_ns) for row in found.rows}


def test_operators_that_both_have_are_a_row_and_the_rest_is_joined_by_category(
    compared: Any,
) -> None:
    base: list[Kernel] = [
        ("sgemm", "gemm", "aten::mm", 0, 100),
        ("bn_v1", "normalisation", "aten::bn_v1", 100, 130),
    ]
    target: list[Kernel] = [
        ("h884", "gemm", "aten::mm", 0, 40),
        ("bn_v2", "normalisation", "aten::bn_v2", 40, 80),
        ("nchwToNhwc", "layout", "aten::conv", 80, 95),
    ]
    found = compared(base, target)
    assert _figures(found) == {
        "aten::mm": (100, 40),
        "other normalisation": (30, 40),
        "other layout": (0, 15),
    }
    assert found.rows[0] == KernelRow("forward", "aten::mm", "gemm", 100, 40, 1, 1), (
        "what changed most comes first"
    )
    assert found.moving_added_ns == 15
    assert (found.base_steps, found.target_steps, found.noun) == (1, 1, "kernel")


def test_the_rows_add_up_to_the_steps_from_first_to_last_kernel(compared: Any) -> None:
    """Kernels overlap, and gaps between them belong to nothing or to a copy to the host."""
    kernels: list[Kernel] = [
        ("a", "gemm", "mm", 0, 100),
        ("b", "gemm", "mm", 50, 120),
        ("copy", "copy to host", "item", 130, 140),
        ("c", "gemm", "mm", 200, 230),
    ]
    found = compared(kernels, kernels)
    assert _figures(found) == {
        "mm": (150, 150),
        "item": (10, 10),
        OTHER_IDLE: (10, 10),
        SYNC_STALL: (60, 60),
    }
    assert sum(row.base_ns for row in found.rows) == 230


def test_idle_is_counted_once_however_many_steps_overlap() -> None:
    """The gap before a kernel is no gap if a kernel of another step runs in it."""
    rows = []
    for step in range(4):
        for begin, end in ((step * 10, step * 10 + 10), (500 + step * 10, 510 + step * 10)):
            row = {"rank": 0, "step": step, "phase": "forward", "device": "cuda:0", "stream": step}
            row |= {"name": "k", "category": "gemm", "op": "mm"}
            rows.append(row | {"start_ns": begin, "end_ns": end, "launch_ns": begin - 5})
    table = rows_table("kernels", rows)
    found = {key.name: (ns, calls) for key, ns, calls in _idle(table, None)}
    assert found == {LAUNCH_IDLE: (460, 1)}


def test_the_gap_between_two_windows_is_none() -> None:
    rows = []
    for step, begin in ((20, 0), (21, 100), (120, 90_000)):
        row = {"rank": 0, "step": step, "phase": "forward", "device": "cuda:0", "stream": 7}
        row |= {"name": "k", "category": "gemm", "op": "mm", "launch_ns": begin}
        rows.append(row | {"start_ns": begin + 1, "end_ns": begin + 11})
    found = {key.name: ns for key, ns, _ in _idle(rows_table("kernels", rows), None)}
    assert found == {LAUNCH_IDLE: 90}


def test_work_without_an_operator_has_its_own_name(compared: Any) -> None:
    kernels: list[Kernel] = [
        ("a", "gemm", "mm", 0, 100),
        ("Memcpy DtoD", "copy on device", None, 100, 120),
    ]
    assert _figures(compared(kernels, kernels)) == {"mm": (100, 100), "Memcpy DtoD": (20, 20)}


def test_on_a_cpu_the_time_between_operators_is_the_interpreters(compared: Any) -> None:
    kernels: list[Kernel] = [
        ("aten::mm", "gemm", None, 0, 100),
        ("aten::relu", "elementwise", None, 130, 150),
    ]
    found = compared(kernels, kernels, device="cpu")
    assert _figures(found) == {"aten::mm": (100, 100), "aten::relu": (20, 20), BETWEEN: (30, 30)}
    assert found.noun == "operator"
    assert found.tensor_core_share == (None, None)


def test_without_captured_steps_on_both_sides_nothing_opens(compared: Any) -> None:
    assert compared([("a", "gemm", "mm", 0, 100)], []) is None
