"""Dumps of PyTorch's flight recorder as calls."""

from __future__ import annotations

import math
from typing import Any

from profkit.hangs.flight import calls_of_dump


def entry(number: int, *, retired: bool, name: str = "gloo:all_reduce", **more: Any) -> Any:
    return {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": name,
        "process_group": ["0", "default_pg"],
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": retired,
        "time_created_ns": 5,
        **more,
    }


def test_a_dump_of_gloo() -> None:
    groups = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    dump = {"entries": [entry(1, retired=True), entry(2, retired=False)], "pg_config": groups}
    first, second = calls_of_dump(dump, 0)
    assert (first.done, second.done) == (True, False)
    assert (second.op, second.sequence, second.bytes, second.dtype) == (
        "all_reduce",
        2,
        128,
        "float32",
    )
    assert second.members == (0, 1)
    assert second.started is None


def test_a_message_to_one_rank_names_it() -> None:
    point = entry(0, retired=False, name="nccl:recv 0<-3", is_p2p=True, p2p_seq_id=7)
    (call,) = calls_of_dump({"entries": [point]}, 0)
    assert (call.op, call.peer, call.sequence) == ("recv", 3, 7)


def test_damaged_entries_are_left_out() -> None:
    entries = [3, None, {}, entry(1, retired=True, input_sizes=[["x"]]), entry(2, retired=True)]
    for field in ("collective_seq_id", "time_created_ns"):
        entries.append({**entry(3, retired=True), field: math.inf})
    entries.append(entry(4, retired=True, input_sizes=[[math.inf]]))
    assert [call.sequence for call in calls_of_dump({"entries": entries}, 0)] == [2]
    assert calls_of_dump({"entries": "no"}, 0) == []
