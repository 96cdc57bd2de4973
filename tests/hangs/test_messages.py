"""Messages of one rank to another: pipelines, whose stages wait in turn."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from profkit.hangs.evidence import Evidence
from profkit.hangs.status import Call, Frame, Status
from profkit.hangs.verdict import HangClass, Verdict, judge
from profkit.instrument.collectives import CallLog, Message
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.sent import Group
from profkit.run.lookout.calls import read_calls
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
    assert judge_all(*everybody).kind is HangClass.UNCLEAR


def test_the_stage_for_which_the_others_wait_in_turn() -> None:
    done = calls(5, done=True)
    found = judge_all(
        rank(0, stack=RECEIVING, calls=(*done, message("recv", 1))),
        rank(1, stack=SENDING, calls=(*done, message("send", 2))),
        rank(2, stack=IN_CODE, calls=done),
    )
    assert (found.kind, found.ranks, found.waiting) == (HangClass.NEVER_ENTERED, (2,), (0, 1))


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


def test_a_dump_without_messages_gets_those_that_profkit_has_noted() -> None:
    recorder = Recorder(MemorySink())
    log = CallLog(recorder, lambda row: None, defaultdict(itertools.count))
    world = Group("default", 2, "gloo", blocks=True)
    log.begin(world, "all_reduce", Message(8, "float32"))
    log.begin(PAIR, "send", Message(16, "float32"))  # nobody waits for it: it may be over
    log.begin(PAIR, "send", Message(32, "float32")).is_waited = True
    dump = json.dumps({"entries": [entry(1, retired=True)]})
    framework: Any = SimpleNamespace(dump_flight=lambda: dump)
    found, source = read_calls(framework, recorder)
    assert source == "the flight recorder"
    assert [(call.op, call.bytes, call.peer, call.done) for call in found] == [
        ("all_reduce", 128, None, True),
        ("send", 16, 1, True),
        ("send", 32, 1, False),
    ]
