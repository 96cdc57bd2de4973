"""Collectives that carry no gradients: those of a split model are its own work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from profkit.explain.evidence import summarize_exchanges
from profkit.explain.rules.more_collectives import others_by_op


def _rows(**changed: Any) -> pa.Table:
    """Return four messages of each rank: two of a layer, and two buckets."""
    columns = {
        "rank": [0, 0, 0, 0, 1, 1, 1, 1],
        "op": ["all_gather", "all_reduce", "all_reduce", "all_reduce"] * 2,
        "bytes": [512, 512, 4096, 4096] * 2,
        "bucket": [None, None, 0, 1] * 2,
        "start_ns": [120, 220, 240, 260, 170, 270, 290, 310],
        "end_ns": [130, 230, 250, 270, 180, 280, 300, 320],
        "dimension": pa.array([None] * 8, pa.string()),
        "module": pa.array([None] * 8, pa.string()),
    } | changed
    return pa.table(columns)


@pytest.mark.parametrize(
    ("changed", "others"),
    [
        ({}, {"all_gather": 1.0, "all_reduce": 1.0}),
        ({"dimension": ["dp"] * 8}, {"all_gather": 1.0, "all_reduce": 1.0}),
        ({"dimension": ["dp", "tp_inner", "dp", "dp"] * 2}, {"all_gather": 1.0}),
        ({"module": ["layers.0", None, None, None] * 2}, {"all_reduce": 1.0}),
    ],
    ids=["layers", "data parallel", "tensor parallel", "FSDP"],
)
def test_messages_besides_gradients_are_counted(
    changed: dict[str, Any], others: dict[str, float]
) -> None:
    rows: Any = _rows(**changed)
    found = summarize_exchanges(rows, steps=1, ranks=2)
    assert (found.messages, found.buckets) == (2.0, 2)
    run: Any = SimpleNamespace(collectives=rows, used=[0], costs=SimpleNamespace(ranks=2))
    counted = others_by_op(run)
    assert {op: count for op, (count, _) in counted.items() if count} == others
