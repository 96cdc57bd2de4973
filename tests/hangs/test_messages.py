"""Messages of one rank to another: pipelines, whose stages wait in turn."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from profkit.hangs.classes import HangClass, Level
from profkit.hangs.evidence import Evidence
from profkit.hangs.status import Call, Frame, Status
from profkit.hangs.verdict import Verdict, judge
from profkit.hangs.words import as_json, say_call, say_verdict
from profkit.instrument.collectives import CallLog, Message
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.sent import Group
from profkit.run.lookout.calls import CallReader, name_open_calls
from tests.hangs.test_flight import entry
from tests.hangs.test_verdict import ALL_REDUCE, IN_CODE, TORCH, calls, rank

SENDING = (Frame(f"{TORCH}distributed/distributed_c10d.py", "send", 2500, "package"), *IN_CODE)
RECEIVING = (Frame(f"{TORCH}distributed/distributed_c10d.py", "recv", 2600, "package"), *IN_CODE)
PAIR = Group("default:0>1", 2, "gloo", blocks=True, members=(0, 1), peer=1)


def judge_all(*statuses: Status) -> Verdict:
    found = judge(Evidence({status.rank: status for status in statuses}, len(statuses)))
    assert found is not None
    return found


def message(op: str, peer: int, *, done: bool = False) -> Call:
    return Call("pair", 3, op, 64, "float32", done=done, peer=peer)


def test_stages_that_only_the_stack_shows_in_a_message_are_no_mismatch() -> None:
    """Gloo's recorder holds no message, and nobody may have noted the ends of one."""
    done = calls(5, done=True)
    found = judge_all(
        rank(0, stack=RECEIVING, calls=done),
        rank(1, stack=SENDING, calls=done),
        rank(2, stack=IN_CODE, calls=done),
    )
    assert (found.kind, found.ranks, found.waiting) == (HangClass.NEVER_ENTERED, (2,), (0, 1))
    everybody = [rank(number, stack=RECEIVING, calls=done) for number in range(2)]
    found = judge_all(*everybody)
    assert (found.kind, found.level) == (HangClass.UNCLEAR, Level.ALARM)
    moving = judge_all(everybody[0], rank(1, stack=SENDING, calls=done, idle_s=1.0))
    assert (moving.kind, moving.level) == (HangClass.UNCLEAR, Level.NOTICE)


def test_the_stage_for_which_the_others_wait_in_turn() -> None:
    done = calls(5, done=True)
    found = judge_all(
        rank(0, stack=RECEIVING, calls=(*done, message("recv", 1))),
        rank(1, stack=SENDING, calls=(*done, message("send", 2))),
        rank(2, stack=IN_CODE, calls=done),
    )
    assert (found.kind, found.ranks, found.waiting) == (HangClass.NEVER_ENTERED, (2,), (0, 1))


def test_a_rank_in_a_message_is_named_and_not_one_that_is_behind() -> None:
    """The root of a broadcast goes on before the others, so ranks of one group may be apart."""
    found = judge_all(
        rank(0, stack=ALL_REDUCE, calls=calls(129, done=False)),
        rank(1, stack=ALL_REDUCE, calls=calls(127, done=False)),
        rank(2, stack=ALL_REDUCE, calls=calls(129, done=False)),
        rank(3, stack=RECEIVING, calls=(*calls(126, done=True), message("recv", 0))),
    )
    assert (found.kind, found.ranks) == (HangClass.MISMATCH, (3,))
    assert found.waiting == (0, 1, 2)


def test_each_call_of_waiting_ranks_is_said() -> None:
    stages = judge_all(
        rank(0, stack=RECEIVING, calls=(message("recv", 1),)),
        rank(1, stack=RECEIVING, calls=(message("recv", 2),)),
        rank(2, stack=IN_CODE, calls=()),
    )
    assert say_verdict(stages) == (
        "rank 0 waits in recv with rank 1; rank 1 waits in recv with rank 2; "
        "rank 2 has not entered the recv of rank 1: train.py:12 resize, state S (sleeps)"
    )
    assert stages.call == message("recv", 2)
    world, pair = calls(5, done=False), calls(812, done=False, group="tp", members=(2, 3))[1:]
    groups = judge_all(
        *[rank(number, calls=world) for number in (0, 1)],
        rank(2, calls=(*world[:1], *pair)),
        rank(3, stack=IN_CODE, calls=world[:1]),
    )
    assert say_verdict(groups).startswith(
        "ranks 0-1 wait in all_reduce #5 of group 0; rank 2 waits in all_reduce #812 of group tp; "
        "rank 3 has not entered all_reduce #5 of group 0 and all_reduce #812 of group tp: "
    )
    assert as_json(groups)["collective"]["sequence"] == 5
    pipeline = [rank(stage, calls=(message("recv", stage + 1),)) for stage in range(8)]
    words = say_verdict(judge_all(*pipeline, rank(8, stack=IN_CODE, calls=())))
    assert "rank 3 waits in recv with rank 4; ranks 4-7 wait in other calls; rank 8 has" in words


def test_a_rank_is_not_said_to_miss_a_call_in_which_it_is_not_missed() -> None:
    backward = (Frame(f"{TORCH}autograd/graph.py", "_engine_run_backward", 8, "package"), *IN_CODE)
    found = judge_all(
        rank(0, calls=(message("recv", 2),)),
        rank(1, stack=backward, calls=()),
        rank(2, stack=IN_CODE, calls=()),
    )
    assert say_verdict(found).startswith(
        "rank 0 waits in recv with rank 2; rank 1 waits for other ranks; "
        "rank 2 has not entered the recv of rank 0: "
    )


def test_all_ranks_are_those_of_the_job() -> None:
    pair = calls(7, done=False, group="tp", members=(0, 1))[1:]
    stuck = [rank(number, calls=pair) for number in (0, 1)]
    alone = judge_all(*stuck, *[rank(n, calls=calls(5, done=False)) for n in (2, 3)])
    assert alone.kind is HangClass.NONE_LEFT
    assert say_verdict(alone) == (
        "all of ranks 0-1 have entered all_reduce #7, and ranks 0-1 cannot leave it; "
        "ranks 2-3 wait in all_reduce #5"
    )
    other = calls(9, done=False, group="dp", members=(2, 3))[1:]
    two = judge_all(*stuck, *[rank(number, calls=other) for number in (2, 3)])
    assert say_verdict(two) == (
        "ranks 0-1 have all entered all_reduce #7 of group tp, and none has left it; "
        "ranks 2-3 have all entered all_reduce #9 of group dp, and none has left it"
    )


def test_a_message_has_two_ends() -> None:
    """Rank 1 sends, but not to rank 0, which waits for a message of rank 1."""
    found = judge_all(
        rank(0, calls=(message("recv", 1),)),
        rank(1, calls=(message("send", 2),)),
        rank(2, stack=IN_CODE, calls=()),
    )
    assert found.waits.missing == {0: {1}, 1: {2}}
    meeting = rank(1, calls=(message("send", 2, done=True), message("send", 0)))
    assert judge_all(rank(0, calls=(message("recv", 1),)), meeting).waits.missing[0] == frozenset()


def test_a_message_with_an_unknown_end_is_no_collective() -> None:
    anywhere = Call("0", 5, "recv", 64, "float32", (0, 1, 2))
    found = judge_all(
        rank(0, stack=RECEIVING, calls=(anywhere,)),
        rank(1, stack=ALL_REDUCE, calls=calls(5, done=False, members=(0, 1, 2))),
        rank(2, stack=IN_CODE, calls=calls(4, done=True, members=(0, 1, 2))),
    )
    assert found.kind is not HangClass.MISMATCH
    assert 0 not in found.waits.open
    behind = calls(5, done=False, members=(0, 1))[1:]  # a device begins it after the message
    found = judge_all(*[rank(number, calls=(anywhere, *behind)) for number in (0, 1)])
    assert not any(call in behind for call in found.waits.open.values())


def test_a_dump_without_messages_gets_those_that_profkit_has_noted() -> None:
    recorder = Recorder(MemorySink())
    log = CallLog(recorder, lambda row: None, defaultdict(itertools.count))
    world = Group("default", 2, "gloo", blocks=True)
    log.begin(world, "all_reduce", Message(8, "float32"))
    log.begin(PAIR, "send", Message(16, "float32"))  # nobody waits for it: it may be over
    log.begin(PAIR, "send", Message(32, "float32")).is_waited = True
    dump = json.dumps({"entries": [entry(1, retired=True)]})
    framework: Any = SimpleNamespace(dump_flight=lambda **_: (dump,))
    found, source = CallReader().read(framework, recorder)
    assert source == "the flight recorder"
    assert [(call.op, call.bytes, call.peer, call.done) for call in found] == [
        ("all_reduce", 128, None, True),
        ("send", 16, 1, True),
        ("send", 32, 1, False),
    ]


def test_an_open_collective_has_the_name_by_which_the_job_called_it() -> None:
    """Gloo does a reduce-scatter by reducing all, which is what its list says."""
    noted = [
        Call("0", 7, "all_gather", members=(0, 1), done=True, since_ns=100),
        Call("0", 8, "reduce_scatter", members=(0, 1), since_ns=200),
        Call("1", 3, "broadcast", members=(0, 2), since_ns=205),
    ]
    listed = [
        Call("0", 7, "all_gather", members=(0, 1), done=True, since_ns=110),
        Call("0", 8, "all_reduce", members=(0, 1), since_ns=210),
    ]
    found = name_open_calls(listed, noted)
    assert [call.op for call in found] == ["all_gather", "all_reduce"]  # compared over the ranks
    assert say_call(found[1]) == "reduce_scatter #8"
    several = [*noted, Call("0", 9, "all_reduce", members=(0, 1), since_ns=209)]
    assert name_open_calls(listed, several) == name_open_calls(listed, []) == listed
