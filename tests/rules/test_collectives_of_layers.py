"""Only small messages inside forward and backward are those of normalisation layers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from profkit.explain.evidence import MAX_STATISTICS_BYTES, summarize_exchanges

SPANS = pa.table(
    {
        "rank": [0, 0, 0, 1, 1, 1],
        "phase": ["forward", "backward", "optimizer"] * 2,
        "depth": pa.array([0] * 6, pa.int16()),
        "start_ns": [100, 200, 300, 150, 250, 350],
        "end_ns": [200, 300, 400, 250, 350, 450],
    }
)


def _rows(**changed: Any) -> pa.Table:
    """Return four messages of each rank: two of a layer, and two buckets."""
    columns = {
        "rank": [0, 0, 0, 0, 1, 1, 1, 1],
        "op": ["all_gather", "all_reduce", "all_reduce", "all_reduce"] * 2,
        "bytes": [512, 512, 4096, 4096] * 2,
        "bucket": [None, None, 0, 1] * 2,
        "start_ns": [120, 220, 240, 260, 170, 270, 290, 310],
        "dimension": pa.array([None] * 8, pa.string()),
        "module": pa.array([None] * 8, pa.string()),
    } | changed
    return pa.table(columns)


@pytest.mark.parametrize(
    ("changed", "others"),
    [
        ({}, 2.0),
        ({"op": ["broadcast"] * 8}, 0.0),
        ({"op": ["reduce_scatter", "all_reduce", "all_reduce", "all_reduce"] * 2}, 1.0),
        ({"bytes": [2 * MAX_STATISTICS_BYTES] * 8}, 0.0),
        ({"start_ns": [90, 410, 240, 260, 140, 460, 290, 310]}, 0.0),
        ({"start_ns": [420, 460] * 4}, 0.0),
        ({"dimension": ["dp"] * 8}, 2.0),
        ({"dimension": ["dp", "tp_inner", "dp", "dp"] * 2}, 1.0),
        ({"module": ["layers.0", None, None, None] * 2}, 1.0),
    ],
    ids=[
        "layers",
        "buffers",
        "sharded weights",
        "weights",
        "around a step",
        "metrics",
        "data parallel",
        "tensor parallel",
        "FSDP",
    ],
)
def test_messages_of_layers_are_counted(changed: dict[str, Any], others: float) -> None:
    found = summarize_exchanges(_rows(**changed), SPANS, steps=1, ranks=2)
    assert (found.messages, found.buckets) == (2.0, 2)
    assert found.others == others


def test_a_run_without_phases_has_no_messages_of_layers() -> None:
    assert summarize_exchanges(_rows(), SPANS.slice(0, 0), steps=1, ranks=2).others == 0
