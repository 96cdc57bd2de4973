"""Dumps of PyTorch's flight recorder as calls."""

from __future__ import annotations

import math
from typing import Any

from profkit.hangs.flight import calls_of_dump, cut_calls
from profkit.hangs.status import MOST_CALLS, Call


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
    first, second = calls_of_dump(dump)
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
    (call,) = calls_of_dump({"entries": [point]})
    assert (call.op, call.peer, call.sequence) == ("recv", 3, 7)


def test_the_ranks_of_a_message_are_numbers_of_its_group() -> None:
    groups = {"5": {"name": "5", "desc": "mesh_pp", "ranks": "[1, 5]"}}
    point: Any = {"is_p2p": True, "process_group": ["5", "mesh_pp"], "p2p_seq_id": 2}
    sends = entry(0, retired=False, name="nccl:send 0->1", **point)
    receives = entry(0, retired=False, name="nccl:recv 1<-0", **point)
    peers = []
    for each in (sends, receives):
        (call,) = calls_of_dump({"entries": [each], "pg_config": groups})
        peers.append(call.peer)
    assert peers == [5, 1]
    (unknown,) = calls_of_dump({"entries": [sends]})
    beyond = {**sends, "profiling_name": "nccl:send 0->9"}
    (wrong,) = calls_of_dump({"entries": [beyond], "pg_config": groups})
    anywhere = {**receives, "profiling_name": "nccl:recv 1<-?"}
    (any_source,) = calls_of_dump({"entries": [anywhere], "pg_config": groups})
    for call in (unknown, wrong, any_source):
        assert (call.peer, call.is_message) == (None, True)


def test_the_first_open_call_of_each_group_is_kept() -> None:
    """Over NCCL, the host hands over many collectives after the one that hangs."""
    calls = [Call("a", number, "all_reduce", done=number < 3) for number in range(300)]
    calls += [Call("b", number, "all_gather", done=number < 5) for number in range(6)]
    calls += [Call("b", number, "send", done=number < 2, peer=1) for number in range(4)]
    kept = cut_calls([*calls, *(Call("c", number, "barrier", done=True) for number in range(99))])
    assert len(kept) == MOST_CALLS
    assert [(call.group, call.sequence, call.op) for call in kept[:4]] == [
        ("a", 3, "all_reduce"),
        ("b", 5, "all_gather"),
        ("b", 2, "send"),
        ("c", 38, "barrier"),
    ]
    assert cut_calls(calls[:2]) == tuple(calls[:2])
    many = [Call(str(number), 1, "all_reduce") for number in range(100)]
    assert len(cut_calls(many)) == MOST_CALLS
    assert cut_calls(many)[0] == many[0]


def test_a_collective_before_one_that_is_over_is_over_on_nccl() -> None:
    """The recorder never updates what a graph has captured, and NCCL keeps the order."""
    captured = [entry(number, retired=False, name="nccl:all_reduce") for number in (1, 2)]
    ended = entry(3, retired=True, name="nccl:all_reduce", state="completed")
    last = entry(4, retired=False, name="nccl:all_reduce")
    found = calls_of_dump({"entries": [*captured, ended, last]})
    assert [call.done for call in found] == [True, True, True, False]
    on_gloo = [entry(1, retired=False), entry(2, retired=True)]
    assert [call.done for call in calls_of_dump({"entries": on_gloo})] == [False, True]


def test_damaged_entries_are_left_out() -> None:
    entries = [3, None, {}, entry(1, retired=True, input_sizes=[["x"]]), entry(2, retired=True)]
    for field in ("collective_seq_id", "time_created_ns"):
        entries.append({**entry(3, retired=True), field: math.inf})
    entries.append(entry(4, retired=True, input_sizes=[[math.inf]]))
    assert [call.sequence for call in calls_of_dump({"entries": entries})] == [2]
    assert calls_of_dump({"entries": "no"}) == []


def in_batch(number: int, name: str, state: str = "scheduled") -> Any:
    is_end = name.endswith("coalesced")
    sizes: list[Any] = [] if is_end else [[4, 8]]
    return entry(
        1,
        retired=is_end and state == "completed",
        name=f"nccl:{name}",
        is_p2p=True,
        p2p_seq_id=number,
        state=state,
        input_sizes=sizes,
        input_dtypes=[] if is_end else ["Float"],
    )


def test_messages_of_a_batch_are_over_when_the_batch_is() -> None:
    """torch updates only the entry that closes a batch, which has no message of its own."""
    entries = [
        entry(1, retired=True, name="nccl:all_reduce", state="completed"),
        in_batch(7, "send 0->1"),
        in_batch(7, "recv 0<-1"),
        in_batch(7, "coalesced", "completed"),
        in_batch(8, "send 0->1"),
        in_batch(8, "coalesced", "started"),
        in_batch(9, "send 0->1"),
    ]
    found = calls_of_dump({"entries": entries})
    assert [(call.op, call.sequence, call.done, call.started) for call in found] == [
        ("all_reduce", 1, True, True),
        ("send", 7, True, True),
        ("recv", 7, True, True),
        ("send", 8, False, True),
        ("send", 9, False, False),
    ]


def test_the_number_of_a_batch_that_an_older_torch_uses_again() -> None:
    """It counts a batch as a collective, and its messages keep the number of the one before."""
    again = [in_batch(7, "send 0->1"), in_batch(7, "coalesced", "completed")]
    last = [in_batch(7, "send 0->1"), in_batch(7, "coalesced")]
    found = calls_of_dump({"entries": [*again, *again, *last]})
    assert [call.done for call in found] == [True, True, False]


def test_collectives_that_begin_together_end_together() -> None:
    scatter = entry(4, retired=False, name="nccl:_reduce_scatter_base")
    end = entry(4, retired=True, name="nccl:REDUCE_SCATTER_coalesced", state="completed")
    alone = {**end, "collective_seq_id": 5, "profiling_name": "nccl:coalesced"}
    found = calls_of_dump({"entries": [scatter, scatter, end, alone]})
    assert [(call.op, call.done) for call in found] == [
        ("reduce_scatter_base", True),
        ("reduce_scatter_base", True),
        ("coalesced", True),
    ]
    fast = entry(6, retired=False, name="nccl:allreduce_coalesced")
    assert [call.op for call in calls_of_dump({"entries": [fast]})] == ["allreduce_coalesced"]
