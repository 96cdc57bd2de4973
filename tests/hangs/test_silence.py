"""Ranks that write nothing more: their host is lost, or native code holds their interpreter."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from profkit.hangs.account import UNKNOWN, read_account
from profkit.hangs.classes import HangClass, Level
from profkit.hangs.evidence import Evidence, read_evidence
from profkit.hangs.status import ENDED, FOLDER, Call, Status
from profkit.hangs.verdict import Verdict, judge
from profkit.hangs.words import say_verdict
from profkit.trace.manifest import RunManifest
from tests.hangs.test_verdict import IN_CODE, NOW, SECOND, calls, rank, waiting

MINUTE = 60 * SECOND


def lost(ago_ns: int, **changes: object) -> Status:
    """Return the last status of a rank that trained when it fell silent."""
    then = NOW - ago_ns
    known: dict[str, object] = {"written_ns": then, "moved_ns": then, "alive_ns": then}
    status = rank(3, host="gpu02", stack=(), calls=(), calls_from="")
    return dataclasses.replace(status, **{**known, **changes})  # type: ignore[arg-type]


def judge_with(last: Status) -> Verdict:
    statuses = [*waiting(0, 1, 2), last]
    evidence = Evidence(
        {status.rank: status for status in statuses}, 4, silent=frozenset({3}), newest_ns=NOW
    )
    found = judge(evidence)
    assert found is not None
    return found


def test_a_rank_that_fell_silent_as_it_trained_is_an_alarm_after_ten_limits() -> None:
    found = judge_with(lost(7 * MINUTE))
    assert (found.kind, found.level, found.ranks) == (HangClass.UNCLEAR, Level.ALARM, (3,))
    assert say_verdict(found) == (
        "ranks 0-2 wait in all_reduce #56; rank 3 has fallen silent, last seen at step 55"
    )
    assert any("rank 3: nothing since it fell silent" in line for line in found.missing)


def test_a_rank_that_imports_or_saves_in_native_code_is_no_alarm_at_once() -> None:
    found = judge_with(lost(MINUTE))
    assert (found.kind, found.level) == (HangClass.UNCLEAR, Level.NOTICE)


def test_the_last_words_of_a_silent_rank_count_for_ten_limits() -> None:
    evaluates = judge_with(lost(MINUTE, stack=IN_CODE, evaluates=True))
    assert (evaluates.kind, evaluates.level) == (HangClass.EVALUATION, Level.NOTICE)
    assert "and has written nothing since" in say_verdict(evaluates)
    for_long = judge_with(lost(7 * MINUTE, stack=IN_CODE, evaluates=True))
    assert for_long.level is Level.ALARM


def test_a_rank_that_is_known_to_be_late_is_named_alone() -> None:
    late = rank(2, stack=IN_CODE, calls=calls(55, done=True))
    known = {status.rank: status for status in (*waiting(0, 1), late, lost(MINUTE))}
    found = judge(Evidence(known, 4, silent=frozenset({3}), newest_ns=NOW))
    assert found is not None
    assert (found.kind, found.ranks) == (HangClass.NEVER_ENTERED, (2,))


LAST_WORDS = 7 * SECOND
"""How long ago a rank wrote its last words, in a barrier that may be over since."""


def judge_two(one: Status, other: Status, **known: Any) -> Verdict:
    found = judge(Evidence({0: one, 1: other}, 2, newest_ns=NOW, **known))
    assert found is not None
    return found


def two(number: int, *, ago_ns: int = 0, **changes: Any) -> Status:
    """Return a rank of two whose last words are in a barrier, or another one."""
    in_barrier = Call("0", 56, "barrier", members=(0, 1))
    known: dict[str, Any] = {"calls": (in_barrier,), "world_size": 2, **changes}
    return rank(number, written_ns=NOW - ago_ns, **known)


HAS_ENDED: dict[str, Any] = {
    "state": ENDED,
    "stack": (),
    "calls": (Call("0", 55, "all_reduce", done=True),),
}


def test_a_silent_rank_is_not_said_to_wait_for_one_that_ended_after_its_last_words() -> None:
    """Both ranks left their last barrier. One ended, and the other has no time to say so."""
    ended = two(0, ago_ns=LAST_WORDS - SECOND // 2, **HAS_ENDED)
    found = judge_two(ended, two(1, ago_ns=LAST_WORDS), silent=frozenset({1}))
    assert (found.kind, found.level, found.ranks) == (HangClass.UNCLEAR, Level.NOTICE, (1,))
    assert (
        say_verdict(found) == "rank 1 has fallen silent, last seen at step 55, at train.py:40 main"
    )


def test_an_own_frame_that_is_newer_than_a_barrier_shows_that_it_is_over() -> None:
    ended = two(0, ago_ns=LAST_WORDS - SECOND // 2, **HAS_ENDED)
    ending = two(1, ago_ns=LAST_WORDS, stack=IN_CODE, loaders_over=True)
    known: dict[str, Any] = {"silent": frozenset({1}), "native": frozenset({1})}
    found = judge_two(ended, ending, **known)
    assert (found.kind, found.level, found.ranks) == (HangClass.OWN_CODE, Level.NOTICE, (1,))
    waits = two(1, ago_ns=LAST_WORDS)
    assert judge_two(ended, waits, **known).kind is HangClass.RANK_DEAD


def test_a_rank_that_is_heard_waits_for_one_that_has_ended() -> None:
    found = judge_two(two(0, ago_ns=LAST_WORDS, **HAS_ENDED), two(1))
    assert (found.kind, found.level) == (HangClass.RANK_DEAD, Level.ALARM)
    assert say_verdict(found) == "rank 1 waits in barrier #56; rank 0 has ended, after 55 steps"


def test_the_last_words_in_a_barrier_are_old_if_another_rank_left_it_and_ended() -> None:
    """As after a SIGKILL, when the second rank is about to end."""
    left = {**HAS_ENDED, "calls": (Call("0", 56, "barrier", done=True),)}
    found = judge_two(two(0, **left), two(1, ago_ns=SECOND // 2))
    assert not found.waits.open
    still = judge_two(two(0, ago_ns=SECOND, **left), two(1))
    assert (still.kind, still.ranks) == (HangClass.NONE_LEFT, (1,))


def test_the_number_of_a_message_is_not_that_of_a_collective() -> None:
    """The rank died as it waited for a message of one that ended later."""
    message = Call("0", 3, "recv", members=(0, 1), peer=0)
    ended = two(0, **HAS_ENDED)  # its last collective is number 55
    found = judge_two(ended, two(1, ago_ns=SECOND // 2, calls=(message,)))
    assert found.waits.open == {1: message}


def test_a_silent_rank_waits_while_another_one_is_heard_and_has_not_entered() -> None:
    late = two(0, stack=IN_CODE, calls=(Call("0", 55, "all_reduce", done=True),))
    found = judge_two(late, two(1, ago_ns=LAST_WORDS), silent=frozenset({1}))
    assert (found.kind, found.ranks, found.waiting) == (HangClass.NEVER_ENTERED, (0,), (1,))


def test_a_job_of_one_rank_that_falls_silent_is_an_alarm_after_ten_limits() -> None:
    for ago_ns, level in ((MINUTE, Level.NOTICE), (7 * MINUTE, Level.ALARM)):
        alone = dataclasses.replace(lost(ago_ns), rank=0, world_size=1)
        found = judge(Evidence({0: alone}, 1, silent=frozenset({0}), newest_ns=NOW))
        assert found is not None
        assert (found.kind, found.level) == (HangClass.UNCLEAR, level)


def test_a_lost_host_is_seen_in_the_files_later(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    for status in (*waiting(0, 1, 2), lost(120 * MINUTE)):
        status.write(tmp_path / FOLDER)
    RunManifest("x").write(tmp_path)
    account = read_account(tmp_path)
    assert account.state == UNKNOWN
    assert account.verdict is not None
    assert account.verdict["ranks"] == [3]


def test_a_host_whose_clock_is_behind_is_not_silent(tmp_path: Path) -> None:
    """The files of one folder have the times of one clock, that of its server."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    here, there = rank(0, host=os.uname().nodename), rank(1, host="gpu02")
    behind = dataclasses.replace(there, written_ns=NOW - 3 * MINUTE)
    for status in (here, behind):
        status.write(folder)
        os.utime(folder / status.file_name, ns=(NOW, NOW))
    evidence = read_evidence(tmp_path, NOW)
    assert evidence is not None
    assert evidence.silent == frozenset()
    os.utime(folder / behind.file_name, ns=(NOW - MINUTE, NOW - MINUTE))
    evidence = read_evidence(tmp_path, NOW)
    assert evidence is not None
    assert evidence.silent == {1}
