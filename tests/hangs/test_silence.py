"""Ranks that write nothing more: their host is lost, or native code holds their interpreter."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from profkit.hangs.account import UNKNOWN, read_account
from profkit.hangs.classes import HangClass, Level
from profkit.hangs.evidence import Evidence, read_evidence
from profkit.hangs.status import FOLDER, Status
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
