"""The alarm of `profkit run`, its events, and the account that is made of them later."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.views.runs import HUNG_STATE, read_head
from profkit.hangs.account import FINE, HUNG, LONG, UNKNOWN, read_account, say_standstill
from profkit.hangs.evidence import HOST_SUFFIX, read_evidence
from profkit.hangs.incidents import MOVED, SEEN, SUFFIX, is_hung
from profkit.hangs.processes import find_exit_code, look_at, pid_space
from profkit.hangs.status import (
    ENDED,
    FAILED,
    FOLDER,
    RUNNING,
    WORKER_SUFFIX,
    Status,
    Worker,
    plain_host,
    read_statuses,
)
from profkit.instrument.tracking.states import CHECKPOINT
from profkit.run.hang_alarm import HangAlarm
from profkit.trace.jsonfile import replace_json
from profkit.trace.manifest import RunManifest
from profkit.vocab import RunState
from tests.hangs.test_verdict import IN_CODE, NOW, SECOND, calls, rank

LIMIT_S = 30.0
JITTER_NS = itertools.cycle((120, -70, -90, 150, -110))
"""Their sum is 0."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    RunManifest("job", state=RunState.RUNNING, world_size=4).write(tmp_path)
    return tmp_path


def write(run: Path, *statuses: Status) -> None:
    for status in statuses:
        status.write(run / FOLDER)


def late(**changes: object) -> Status:
    status = rank(3, stack=IN_CODE, calls=calls(55, done=True))
    return dataclasses.replace(status, **changes)  # type: ignore[arg-type]  # of a test's choice


def judge_now(alarm: HangAlarm, run: Path, now_ns: int) -> None:
    """Look at the ranks as they are each second, until now."""
    for before_s in reversed(range(9)):
        look_at_ranks(alarm, run, now_ns - before_s * SECOND)


def look_at_ranks(alarm: HangAlarm, run: Path, now_ns: int) -> None:
    evidence = read_evidence(run, now_ns)
    assert evidence is not None
    alarm._judge(evidence, now_ns, now_ns)


def date_again(run: Path) -> None:
    """Write each status again as a rank does: its times differ by some 100 ns from the last ones.

    They come from two clocks, which are read one after the other.
    """
    for status in list(read_statuses(run / FOLDER)):
        assert isinstance(status, Status)
        moved_ns = status.moved_ns + next(JITTER_NS)
        write(run, dataclasses.replace(status, moved_ns=moved_ns))


def test_a_standstill_is_said_once_and_its_end_too(run: Path) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, rank(0), rank(1), rank(2), late())
    for _ in range(3):
        judge_now(alarm, run, NOW)
    assert len(said) == 2
    assert said[0].startswith("the job stands still, no step for 40.0 s: never entered")
    assert "rank 3 has not entered it: train.py:12 resize" in said[1]
    assert alarm.unresolved == said[1].strip()
    assert is_hung(run)
    assert read_head(run).state == HUNG_STATE
    assert say_standstill(run).startswith("the job stood still: never entered: ranks 0-2 wait")
    account = read_account(run)
    assert (account.state, account.moved_again) == (HUNG, ())

    moved = NOW + 5 * SECOND
    for number in range(4):
        write(run, rank(number, written_ns=moved, moved_ns=moved, alive_ns=moved))
    judge_now(alarm, run, moved)
    assert said[2:] == ["the job moves again, after 45.0 s without a step"]
    assert alarm.unresolved == ""
    assert not is_hung(run)
    (past,) = read_account(run).moved_again
    assert (past["class"], past["ranks"], past["stood_s"]) == ("entered late", [3], 45.0)


def test_the_time_of_a_standstill_is_that_of_the_ranks_that_stood_still(run: Path) -> None:
    """Rank 0 ends its step while rank 3 is late, and waits for it in the next one."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, late(), *(rank(number, stood_s=20.0) for number in range(3)))
    judge_now(alarm, run, NOW)
    assert said[0].startswith("the job stands still, no step for 40.0 s: never entered")
    moved = NOW + 5 * SECOND
    write(run, rank(3, written_ns=moved, moved_ns=moved, alive_ns=moved))
    look_at_ranks(alarm, run, moved)
    assert said[2:] == ["the job moves again, after 45.0 s without a step"]


def test_nothing_is_said_before_ten_usual_steps(run: Path) -> None:
    said: list[str] = []
    slow = [rank(number, usual_step_s=5.0) for number in range(3)]
    write(run, *slow, late(usual_step_s=5.0))
    judge_now(HangAlarm(run, LIMIT_S, said.append), run, NOW)
    assert said == []


def test_a_limit_of_zero_raises_no_alarm(run: Path) -> None:
    said: list[str] = []
    write(run, rank(0), rank(1), rank(2), late())
    judge_now(HangAlarm(run, 0.0, said.append), run, NOW)
    assert said == []
    assert read_account(run).state == HUNG  # the files show it all the same


def test_a_long_part_is_no_hang(run: Path) -> None:
    said: list[str] = []
    write(run, rank(0), rank(1), rank(2), late(evaluates=True, alive_ns=NOW))
    judge_now(HangAlarm(run, LIMIT_S, said.append), run, NOW)
    assert said[0].endswith("which may be as it should: only some ranks evaluate")
    assert not is_hung(run)
    assert read_account(run).state == LONG


@pytest.mark.parametrize("barrier_s", [1, 9])
def test_the_barrier_after_a_long_part_is_a_hang_only_if_it_lasts(
    run: Path, barrier_s: int
) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, rank(0), rank(1), rank(2), late(evaluates=True, alive_ns=NOW))
    judge_now(alarm, run, NOW)
    write(run, rank(3))
    for second in range(barrier_s):
        look_at_ranks(alarm, run, NOW + second * SECOND)
    has_alarm = any("stands still" in line and "none left" in line for line in said)
    assert has_alarm == (barrier_s == 9)


@pytest.mark.parametrize(("seconds", "is_hang"), [(29, False), (31, True)])
@pytest.mark.parametrize("part", [{"evaluates": True}, {"region": CHECKPOINT}], ids=str)
def test_what_follows_a_long_part_has_the_whole_limit(
    run: Path, part: dict[str, Any], seconds: int, *, is_hang: bool
) -> None:
    """A slow batch after an evaluation, with no step in between."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, rank(0), rank(1), rank(2), late(**part, alive_ns=NOW))
    judge_now(alarm, run, NOW)
    write(run, late())
    for second in range(seconds + 1):
        date_again(run)
        look_at_ranks(alarm, run, NOW + second * SECOND)
    assert any("stands still" in line for line in said) == is_hang


@pytest.mark.parametrize("part_s", [6, 20, 29])
@pytest.mark.parametrize("usual_step_s", [0.5, 6.0])
def test_a_long_part_within_the_limit_has_its_time_too(
    run: Path, part_s: int, usual_step_s: float
) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    limit_s = int(max(LIMIT_S, 10 * usual_step_s))
    part_s = part_s * limit_s // int(LIMIT_S)
    moved_ns = NOW - 100 * SECOND
    known = {"usual_step_s": usual_step_s, "moved_ns": moved_ns, "alive_ns": NOW}
    others = [rank(number, usual_step_s=usual_step_s, moved_ns=moved_ns) for number in range(3)]
    write(run, *others, late(**known, evaluates=True))
    for stood_s in range(part_s):
        look_at_ranks(alarm, run, moved_ns + stood_s * SECOND)
    write(run, late(**known))
    for stood_s in range(part_s, part_s + limit_s):
        date_again(run)
        look_at_ranks(alarm, run, moved_ns + stood_s * SECOND)
    assert said == []
    look_at_ranks(alarm, run, moved_ns + (part_s + limit_s) * SECOND)
    assert said[0].startswith("the job stands still")


@pytest.mark.parametrize("part_s", [15, 28])
def test_a_long_part_of_one_rank_has_its_time_while_another_one_works(
    run: Path, part_s: int
) -> None:
    """Nobody waits for the part: the other rank has a slow batch of its own."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    moved_ns = NOW - 100 * SECOND
    for stood_s in range(part_s + 31):
        now = moved_ns + stood_s * SECOND
        known = {"written_ns": now, "moved_ns": moved_ns + next(JITTER_NS)}
        others = [late(**known, rank=number, alive_ns=moved_ns) for number in range(3)]
        if stood_s > part_s + 3:
            others = [rank(number, **known) for number in range(3)]
        region = CHECKPOINT if stood_s < part_s else ""
        alive_ns = min(now, moved_ns + part_s * SECOND)
        write(run, *others, late(**known, region=region, alive_ns=alive_ns))
        look_at_ranks(alarm, run, now)
        assert any("stands still" in line for line in said) == (stood_s == part_s + 30)


def follow(run: Path, seconds: int, state: Callable[[int], list[Status]]) -> int | None:
    """Return in which second an alarm is raised, if the ranks are as `state` says in each."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    for second in range(seconds):
        now = NOW + second * SECOND
        for status in state(second):
            moved_ns = status.moved_ns + next(JITTER_NS)
            write(run, dataclasses.replace(status, written_ns=now, moved_ns=moved_ns))
        look_at_ranks(alarm, run, now)
        if any("stands still" in line for line in said):
            return second
    return None


def test_a_slow_batch_in_the_step_after_a_long_part_raises_no_alarm(run: Path) -> None:
    """Rank 3 has ended the step with its evaluation; the others wait for it in the next one."""

    def state(second: int) -> list[Status]:
        others = [rank(number, moved_ns=NOW, steps=56) for number in range(3)]
        if second < 40:
            evaluating = late(moved_ns=NOW, evaluates=True, alive_ns=NOW + second * SECOND)
            return [*others, evaluating]
        moved_ns = NOW + 40 * SECOND
        return [*others, late(moved_ns=moved_ns, alive_ns=moved_ns, steps=56)]

    assert follow(run, 90, state) in {70, 71}


def test_a_slow_step_after_a_new_epoch_raises_no_alarm(run: Path) -> None:
    """What happens between two epochs has no name, and may take long."""

    def state(second: int) -> list[Status]:
        between = late(moved_ns=NOW, alive_ns=NOW + min(second, 20) * SECOND)
        between = dataclasses.replace(between, loaders_over=second < 20)
        return [*(rank(number, moved_ns=NOW) for number in range(3)), between]

    assert follow(run, 90, state) == 50


def test_a_rank_that_has_waited_has_its_own_time_after_that(run: Path) -> None:
    def state(second: int) -> list[Status]:
        if second < 20:  # ranks 0 to 2 wait for rank 3, and then rank 3 for rank 0
            between = late(moved_ns=NOW, loaders_over=True, alive_ns=NOW + second * SECOND)
            return [*(rank(number, moved_ns=NOW) for number in range(3)), between]
        waiting = [rank(number, moved_ns=NOW, calls=calls(57, done=False)) for number in (1, 2, 3)]
        slow = late(rank=0, pid=1000, moved_ns=NOW, alive_ns=NOW, calls=calls(56, done=True))
        return [slow, *waiting]

    assert follow(run, 90, state) == 50


def test_a_rank_that_waits_for_others_in_its_evaluation_has_no_excuse(run: Path) -> None:
    """An evaluation with the wrapped model waits for ranks that do not evaluate."""

    def state(second: int) -> list[Status]:
        del second
        others = [rank(number, moved_ns=NOW) for number in range(3)]
        gathers = tuple(dataclasses.replace(call, op="all_gather") for call in others[0].calls)
        return [*others, rank(3, moved_ns=NOW, evaluates=True, calls=gathers)]

    assert follow(run, 60, state) in {30, 31}


def test_a_rank_that_goes_on_without_the_others_is_named(run: Path) -> None:
    def state(second: int) -> list[Status]:
        others = [rank(number, moved_ns=NOW) for number in range(3)]
        ahead = late(steps=60 + second, moved_ns=NOW + second * SECOND)
        return [*others, ahead]

    assert follow(run, 60, state) in {30, 31}


@pytest.mark.parametrize(("after_s", "state"), [(12, UNKNOWN), (31, HUNG)])
@pytest.mark.parametrize("is_watched", [True, False])
def test_a_job_that_is_killed_soon_after_a_long_part_may_not_hang(
    run: Path, after_s: int, state: str, *, is_watched: bool
) -> None:
    """The part itself is shorter than the limit, so that nothing is said of it."""
    alarm = HangAlarm(run, LIMIT_S, lambda line: None)
    moved_ns, part_s = NOW - 100 * SECOND, 20
    for stood_s in range(part_s + after_s):
        now = moved_ns + stood_s * SECOND
        known = {"written_ns": now, "moved_ns": moved_ns + next(JITTER_NS), "alive_ns": now}
        others = [rank(number, **known) for number in range(3)]
        write(run, *others, late(**known, evaluates=stood_s < part_s))
        if is_watched:
            look_at_ranks(alarm, run, now)
    account = read_account(run)
    assert account.state == (state if is_watched else HUNG)
    if account.state == UNKNOWN:
        assert account.headline == (
            "inconclusive: no step for 31.0 s, but rank 3 has held up the job for only the last "
            "11.0 s: never entered"
        )
        assert account.verdict is not None


@pytest.mark.parametrize(
    "damaged",
    [None, [], "x", {"3": []}, {"3": {"steps": 55, "seen_ns": "x"}}, {"3": {"steps": 55}}]
    + [{"3": {"steps": 55, "seen_ns": number}} for number in (-1, 1e400, float("nan"), 10**90)],
)
def test_damaged_excuses_are_ignored(run: Path, damaged: object) -> None:
    write(run, rank(0), rank(1), rank(2), late())
    content = json.dumps({"excuses": damaged})  # NaN, too
    (run / FOLDER / f"gpu01{HOST_SUFFIX}").write_text(content)
    assert read_account(run).state == HUNG


@pytest.mark.parametrize("limit_s", [4.0, LIMIT_S])
def test_a_long_part_before_the_last_step_delays_no_alarm(run: Path, limit_s: float) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, limit_s, said.append)
    known: dict[str, Any] = {"limit_s": limit_s, "written_ns": NOW + 40 * SECOND}
    others = [rank(number, **known) for number in range(3)]
    write(run, *others, late(**known, evaluates=True, alive_ns=NOW))
    judge_now(alarm, run, NOW)
    known |= {"moved_ns": NOW + SECOND, "alive_ns": NOW + SECOND, "steps": 56}
    others = [dataclasses.replace(each, **known) for each in others]
    write(run, *others, late(**known))
    said.clear()
    for second in range(1, int(limit_s) + 2):
        look_at_ranks(alarm, run, NOW + second * SECOND)
    assert any("stands still" in line for line in said)


@pytest.mark.parametrize("looks_again", [False, True])
def test_a_rank_that_has_not_looked_since_may_have_left_the_barrier(
    run: Path, looks_again: bool
) -> None:
    """On a busy machine, a rank gets no time to look for seconds."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    ranks = [rank(number, written_ns=NOW - SECOND) for number in range(4)]
    write(run, *ranks)
    for second in range(9):
        look_at_ranks(alarm, run, NOW + second * SECOND)
        if looks_again and second == 1:
            write(run, *(rank(number, written_ns=NOW + SECOND) for number in range(4)))
    assert any("stands still" in line for line in said) == looks_again


@pytest.mark.parametrize("apart_s", [3, 9])
def test_ranks_that_end_one_after_the_other_are_no_hang(run: Path, apart_s: int) -> None:
    """After a long part, one rank has left the last barrier and ended, and the other not yet."""
    said: list[str] = []
    alarm = HangAlarm(run, 4.0, said.append)
    write(run, rank(0), rank(1), rank(2), late(evaluates=True, alive_ns=NOW))
    judge_now(alarm, run, NOW)
    write(run, late(state=ENDED))
    for tenth in range(apart_s * 10):
        look_at_ranks(alarm, run, NOW + tenth * SECOND // 10)
    assert any("rank dead" in line for line in said) == (apart_s == 9)


@pytest.mark.parametrize("last", [ENDED, RUNNING])
def test_a_rank_that_had_no_time_to_say_its_end_stops_nobody(run: Path, last: str) -> None:
    """Its process is gone. If the others have ended, too, the job does not stand still."""
    said: list[str] = []
    alarm = HangAlarm(run, 4.0, said.append)
    write(run, late(pid=1, host=platform.node(), started_ticks=2**40))
    write(run, *(rank(number, state=ENDED) for number in (0, 1)), rank(2, state=last))
    for tenth in range(100):
        wall_ns = NOW + tenth * SECOND // 10
        evidence = read_evidence(run, wall_ns)
        assert evidence is not None
        alarm._look(evidence, select.poll())
        alarm._judge(evidence, wall_ns, wall_ns)
    assert any("rank dead" in line for line in said) == (last == RUNNING)


@pytest.mark.parametrize("moves", [True, False])
def test_ranks_that_go_from_call_to_call_are_no_hang(run: Path, *, moves: bool) -> None:
    """As parameters that are sent one by one before the first step, on a busy machine."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    for second in range(20):
        number = 227 + 8 * second * moves
        for place in range(4):
            entered = calls(number + place, done=False)
            write(run, rank(place, steps=0, calls=entered))
        look_at_ranks(alarm, run, NOW + second * SECOND)
    assert any("stands still" in line for line in said) == (not moves)


@pytest.mark.parametrize("limit_s", [4.0, LIMIT_S])
def test_a_rank_whose_last_words_are_old_may_have_ended_a_step(run: Path, limit_s: float) -> None:
    """A disk that is slow delays the status of a rank, as does a busy machine."""
    said: list[str] = []
    alarm = HangAlarm(run, limit_s, said.append)
    delay_ns = int(max(3.0, limit_s / 2) * SECOND)
    moved_ns = NOW - 100 * SECOND
    limit_ns = moved_ns + int(limit_s) * SECOND
    heard_ns = limit_ns - SECOND // 2
    for tenth in range(int(limit_s * 15) + 40):
        now = moved_ns + tenth * SECOND // 10
        known: dict[str, Any] = {"limit_s": limit_s, "written_ns": now, "alive_ns": moved_ns}
        write(run, *(rank(number, **known, moved_ns=moved_ns + SECOND) for number in range(3)))
        if now <= heard_ns:
            write(run, late(**known, moved_ns=moved_ns))
        look_at_ranks(alarm, run, now)
        is_due = now >= heard_ns + delay_ns
        assert any("stands still" in line for line in said) == is_due


def test_a_barrier_entered_just_before_the_limit_is_no_hang_yet(run: Path) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    limit_ns = NOW - 10 * SECOND
    write(run, rank(0), rank(1), rank(2), late())
    for before_s in range(9, 1, -1):
        look_at_ranks(alarm, run, limit_ns - before_s * SECOND)
    write(run, rank(3))
    look_at_ranks(alarm, run, limit_ns)
    assert said == []


def test_an_alarm_is_raised_when_the_limit_is_over(run: Path) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, rank(0), rank(1), rank(2), late())
    limit_ns = NOW - 10 * SECOND
    for before_s in range(20, -1, -1):
        assert said == []
        look_at_ranks(alarm, run, limit_ns - before_s * SECOND)
    assert said


def test_a_verdict_of_the_moment_in_which_the_job_moves_is_not_said(run: Path) -> None:
    """The late rank's status is a second older than that of the rank that has moved on."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, rank(0), rank(1), rank(2), late())
    judge_now(alarm, run, NOW)
    moving: dict[str, Any] = {"stack": IN_CODE, "calls": calls(56, done=True)}
    write(run, rank(0, **moving), rank(1, **moving), rank(2, **moving))
    look_at_ranks(alarm, run, NOW)
    assert not any("own code" in line for line in said)
    write(run, *(rank(number, moved_ns=NOW) for number in range(4)))
    look_at_ranks(alarm, run, NOW)
    (past,) = read_account(run).moved_again
    assert (past["class"], past["ranks"]) == ("entered late", [3])


def test_a_job_that_ends_soon_after_a_long_part_has_moved(run: Path) -> None:
    alarm = HangAlarm(run, LIMIT_S, lambda line: None)
    write(run, rank(0), rank(1), rank(2), late(evaluates=True, alive_ns=NOW))
    judge_now(alarm, run, NOW)
    assert read_account(run).state == LONG
    write(run, *(rank(number, state=ENDED) for number in range(4)))
    look_at_ranks(alarm, run, NOW)
    assert read_account(run).state == FINE


def test_a_job_that_computes_after_its_last_step_says_nothing(run: Path) -> None:
    said: list[str] = []
    for number in range(4):
        write(run, rank(number, stack=IN_CODE, calls=calls(55, done=True), alive_ns=NOW))
    judge_now(HangAlarm(run, LIMIT_S, said.append), run, NOW)
    assert said == []


def test_a_run_without_status_files_is_inconclusive(tmp_path: Path) -> None:
    RunManifest("job").write(tmp_path)
    assert read_account(tmp_path).state == UNKNOWN


def test_a_job_that_ended_did_not_hang(run: Path) -> None:
    for number in range(4):
        write(run, rank(number, state=ENDED, calls=calls(55, done=True)))
    account = read_account(run)
    assert (account.state, account.verdict) == (FINE, None)
    assert account.headline == "the job did not hang: all of its ranks have ended"


@pytest.mark.parametrize("after_ms", [10, 500])
def test_ranks_that_a_launcher_ended_are_not_called_dead(run: Path, after_ms: int) -> None:
    """The first process that ends is the dead one; those that end with it cannot be told apart."""
    write(run, rank(0), rank(1), rank(2), late())
    ends = {str(1000 + number): NOW + after_ms * 1_000_000 for number in range(3)}
    content = {"written_ns": NOW, "states": {}, "ended_ns": {**ends, "1003": NOW}}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    evidence = read_evidence(run)
    assert evidence is not None
    dead = [number for number in range(4) if evidence.is_dead(number)]
    assert dead == ([3] if after_ms > 100 else [])


def exit_codes_of(run: Path) -> Mapping[int, int]:
    evidence = read_evidence(run)
    return evidence.exit_codes if evidence is not None else {}


def wait_until(has_come: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not has_come():
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("code", "words"), [(3, "ended with exit code 3"), (-11, "was ended by SIGSEGV")]
)
def test_a_rank_that_quits_explains_the_ends_of_the_others(
    run: Path, code: int, words: str
) -> None:
    """`sys.exit` runs the end of the process, so that the rank reports no error."""
    quits = late(state=ENDED, written_ns=NOW - SECOND)
    write(run, rank(0), rank(1), rank(2), quits)
    ends = {str(1000 + number): NOW + SECOND // 10 for number in range(3)}
    codes = {"1000": -9, "1001": -9, "1002": -9, "1003": code}
    content = {"states": {}, "ended_ns": {**ends, "1003": NOW}, "exit_codes": codes}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    verdict = read_account(run).verdict
    assert verdict is not None
    assert (verdict["class"], verdict["ranks"]) == ("rank dead", [3])
    assert f"rank 3 {words} (process 1003), last seen at step 55" in verdict["text"]


@pytest.mark.parametrize(("own_end_ms", "blamed"), [(4000, 3), (110, 0)])
def test_a_rank_whose_connection_was_cut_did_not_fail_first(
    run: Path, own_end_ms: int, blamed: int
) -> None:
    """`os._exit` leaves no words. The launcher ends others only once the failed process is gone."""
    error = "RuntimeError: [gloo/tcp/pair.cc:545] Connection reset by peer"
    cut = rank(0, state=FAILED, error=error, written_ns=NOW, calls=calls(56, done=True))
    write(run, cut, late(stack=(), written_ns=NOW - SECOND))
    ends = {"1000": NOW + own_end_ms * 1_000_000, "1003": NOW + 100_000_000}
    content = {"states": {}, "ended_ns": ends, "exit_codes": {"1000": 1}}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    verdict = read_account(run).verdict
    assert verdict is not None
    assert (verdict["class"], verdict["ranks"]) == ("rank dead", [blamed])


def test_a_rank_that_had_ended_before_another_failed_is_said(run: Path) -> None:
    error = "RuntimeError: Connection closed by peer"
    write(run, rank(0, state=FAILED, error=error), late(state=ENDED, written_ns=NOW - SECOND))
    verdict = read_account(run).verdict
    assert verdict is not None
    assert verdict["text"].endswith("; rank 3 had ended before, after 55 steps")


def test_a_rank_that_ended_unseen_explains_why_others_were_told_to_end(run: Path) -> None:
    """The launcher may reap the rank before anybody can read its exit code."""
    moving = calls(56, done=False)
    quits = late(state=ENDED, calls=(), calls_from="", stack=(), written_ns=NOW - SECOND)
    write(run, rank(0, calls=moving), rank(1, calls=moving), rank(2, calls=moving), quits)
    ends = {str(1000 + number): NOW for number in range(4)}
    codes = {"1000": -15, "1001": -15, "1002": -15}
    content = {"states": {}, "ended_ns": ends, "exit_codes": codes}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    verdict = read_account(run).verdict
    assert verdict is not None
    assert (verdict["class"], verdict["ranks"]) == ("rank dead", [3])
    assert "ranks 0-2 wait in all_reduce #56; rank 3 has ended, after 55 steps" in verdict["text"]


@pytest.mark.parametrize("stood_s", [2, 29])
def test_a_rank_that_its_backend_aborts_was_waiting_for_another(run: Path, stood_s: int) -> None:
    """Paddle's gloo aborts a rank after 30 s in a collective, which is the limit of the alarm."""
    moved: dict[str, Any] = {"moved_ns": NOW - stood_s * SECOND}
    write(run, *(rank(number, **moved) for number in range(3)), late(**moved))
    ends = {"1001": NOW, **{str(1000 + number): NOW + 10_000_000 for number in (0, 2, 3)}}
    codes = {"1000": -15, "1001": -6, "1002": -15, "1003": -15}
    content = {"states": {}, "ended_ns": ends, "exit_codes": codes}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    verdict = read_account(run).verdict
    assert verdict is not None
    if stood_s == 2:
        assert (verdict["class"], verdict["ranks"]) == ("rank dead", [1])
    else:
        assert (verdict["class"], verdict["ranks"]) == ("never entered", [3])
        assert "rank 1 was ended by SIGABRT (process 1001) while it waited" in verdict["text"]


def test_ranks_that_their_backend_aborts_together_had_a_mismatch(run: Path) -> None:
    moved: dict[str, Any] = {"moved_ns": NOW - 29 * SECOND}
    other = rank(3, calls=calls(56, done=False, op="all_gather"), **moved)
    write(run, *(rank(number, **moved) for number in range(3)), other)
    numbers = [str(1000 + number) for number in range(4)]
    content = {"states": {}, "ended_ns": dict.fromkeys(numbers, NOW)}
    content["exit_codes"] = dict.fromkeys(numbers, -6)
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    account = read_account(run)
    assert account.verdict is not None
    assert (account.state, account.verdict["class"]) == (HUNG, "mismatch")
    assert account.verdict["ranks"] == [3]


def test_ranks_that_all_gave_up_in_a_mismatch_are_not_idle(run: Path) -> None:
    gave_up: dict[str, Any] = {
        "state": FAILED,
        "error": "RuntimeError: Timed out waiting 1800000ms",
    }
    other = rank(3, calls=calls(56, done=False, op="all_gather"), **gave_up)
    write(run, *(rank(number, **gave_up) for number in range(3)), other)
    account = read_account(run)
    assert account.verdict is not None
    assert (account.state, account.verdict["class"]) == (HUNG, "mismatch")


@pytest.mark.parametrize(
    ("codes", "dead"),
    [
        ((-15, -15, -15, 1), [3]),
        ((-15, -15, -9, -15), [2]),
        ((-9, -9, -6, -9), [2]),
        ((-9, -9, -9, -9), []),
        ((-15, -15, -15, -15), []),
    ],
)
def test_a_launcher_that_is_quick_is_known_by_its_signal(
    run: Path, codes: tuple[int, ...], dead: list[int]
) -> None:
    """A launcher looks often, so that the ends of all ranks may be milliseconds apart."""
    write(run, rank(0), rank(1), rank(2), late())
    ends = {str(1000 + number): NOW + number * 5_000_000 for number in range(4)}
    exit_codes = {str(1000 + number): code for number, code in enumerate(codes)}
    content = {"states": {}, "ended_ns": ends, "exit_codes": exit_codes}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    evidence = read_evidence(run)
    assert evidence is not None
    assert [number for number in range(4) if evidence.is_dead(number)] == dead


def test_the_exit_code_of_a_rank_is_seen_until_its_launcher_reaps_it(run: Path) -> None:
    words = "import sys; sys.stdin.read(); sys.exit(3)"
    child = subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE)
    write(run, late(pid=child.pid, host=platform.node(), started_ticks=look_at(child.pid)[2]))
    alarm = HangAlarm(run, LIMIT_S, lambda line: None)
    alarm.start()
    path = run / FOLDER / f"{plain_host(platform.node())}{HOST_SUFFIX}"
    wait_until(path.exists)
    assert child.stdin is not None
    child.stdin.close()
    wait_until(lambda: bool(exit_codes_of(run)))
    alarm.stop()
    assert find_exit_code(child.pid) == 3
    child.wait()
    assert exit_codes_of(run) == {3: 3}


def test_the_rank_that_failed_explains_the_ends_of_the_others(run: Path) -> None:
    failed = late(state=FAILED, error="KeyError: 'cat'", written_ns=NOW)
    write(run, rank(0), rank(1), rank(2), failed)
    content = {"states": {}, "ended_ns": {"1000": NOW + SECOND, "1001": NOW + SECOND}}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    account = read_account(run)
    assert account.state == FINE
    assert account.headline == "the job did not stand still: rank dead"
    assert account.verdict is not None
    assert "rank 3 ended with KeyError: 'cat' at train.py:12 resize" in account.verdict["text"]


@pytest.mark.parametrize(("stood_s", "state"), [(LIMIT_S - 1, FINE), (LIMIT_S + 1, UNKNOWN)])
def test_a_rank_that_is_killed_may_have_hung_before(run: Path, stood_s: float, state: str) -> None:
    """The other rank outlived it by less than the limit, so that nobody saw it stand still."""
    killed = late(moved_ns=NOW - int(stood_s * SECOND), written_ns=NOW, calls=())
    write(run, rank(0), rank(1), rank(2), killed)
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", {"states": {"1003": ""}})
    account = read_account(run)
    assert account.verdict is not None
    assert account.verdict["class"] == "rank dead"
    assert account.state == state


def test_a_process_with_the_number_of_a_rank_is_not_the_rank(run: Path) -> None:
    """Process ids are used again: process 1 runs, and started at another time."""
    other = late(pid=1, host=platform.node(), started_ticks=2**40)
    write(run, other)
    alarm = HangAlarm(run, LIMIT_S, lambda line: None)
    evidence = read_evidence(run)
    assert evidence is not None
    alarm._look(evidence, select.poll())
    seen = read_evidence(run)
    assert seen is not None
    assert seen.ranks[3].state == RUNNING
    assert seen.is_dead(3)


def test_a_clock_that_jumps_raises_no_alarm(run: Path) -> None:
    """The statuses are a second old by the time that has passed, and an hour by the clock."""
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    for number in range(4):
        write(run, rank(number, moved_ns=NOW - SECOND, alive_ns=NOW))
    for second in range(6):
        evidence = read_evidence(run, NOW + 3600 * SECOND)
        assert evidence is not None
        alarm._judge(evidence, NOW + (3600 + second) * SECOND, NOW + second * SECOND)
    assert said == []


def test_a_long_part_is_not_said_to_be_longer_after_a_jump(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notice needs no time to settle. The ranks write again some seconds after the jump."""
    clock = {"wall": NOW, "now": 10 * SECOND}
    monkeypatch.setattr("profkit.run.hang_alarm.wall_ns", lambda: clock["wall"])
    monkeypatch.setattr("profkit.run.hang_alarm.now_ns", lambda: clock["now"])
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    for second in range(15):
        jump_ns = 3600 * SECOND if second >= 3 else 0
        clock |= {"wall": NOW + second * SECOND + jump_ns, "now": (10 + second) * SECOND}
        if second % 5 == 2:
            began = clock["wall"] - second * SECOND
            for number in range(4):
                times = {"written_ns": clock["wall"], "moved_ns": began, "alive_ns": clock["wall"]}
                write(run, rank(number, host=alarm._host, evaluates=number == 0, **times))
        alarm._look_once(select.poll())
    assert said == []


def test_the_length_of_a_standstill_does_not_follow_the_clock(run: Path) -> None:
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    write(run, rank(0), rank(1), rank(2), late())
    judge_now(alarm, run, NOW)
    jumped = NOW - 3600 * SECOND
    for number in range(4):
        write(run, rank(number, written_ns=jumped, moved_ns=jumped, alive_ns=jumped))
    evidence = read_evidence(run)
    assert evidence is not None
    alarm._judge(evidence, jumped, NOW + 5 * SECOND)
    assert said[-1] == "the job moves again, after 45.0 s without a step"


def test_a_full_disk_leaves_the_printed_verdict(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("profkit.run.hang_alarm.append_event", fail)
    monkeypatch.setattr("profkit.run.hang_alarm.replace_json", fail)
    said: list[str] = []
    alarm = HangAlarm(run, LIMIT_S, said.append)
    here = platform.node()
    write(run, rank(0), rank(1), rank(2), late(host=here, pid=os.getppid(), started_ticks=1))
    evidence = read_evidence(run)
    assert evidence is not None
    alarm._look(evidence, select.poll())
    judge_now(alarm, run, NOW)
    assert said[0].startswith("the job stands still")
    assert alarm.unresolved


def ended(run: Path, after_s: dict[int, float], told_s: float | None = None) -> None:
    ends = {str(1000 + number): NOW + int(s * SECOND) for number, s in after_s.items()}
    told_ns = None if told_s is None else NOW + int(told_s * SECOND)
    content = {"states": {}, "ended_ns": ends, "told_ns": told_ns}
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)


def test_ranks_that_end_one_after_the_other_because_they_are_told_to_are_not_dead(
    run: Path,
) -> None:
    write(run, rank(0), rank(1), rank(2), late())
    ended(run, {0: 1.0, 1: 1.5, 2: 9.0, 3: 31.0}, told_s=0.9)
    evidence = read_evidence(run)
    assert evidence is not None
    assert not any(map(evidence.is_dead, range(4)))
    ended(run, {3: 0.5, 0: 1.0}, told_s=0.9)
    evidence = read_evidence(run)
    assert evidence is not None
    assert list(filter(evidence.is_dead, range(4))) == [3]


def test_the_end_of_an_earlier_process_of_the_same_number_is_not_that_of_the_rank(
    run: Path,
) -> None:
    write(run, rank(0), rank(1), rank(2), late())
    ended(run, {3: -300.0})
    evidence = read_evidence(run)
    assert evidence is not None
    assert not evidence.is_dead(3)


def test_a_rank_in_another_container_of_this_name_is_not_looked_up_here(run: Path) -> None:
    other = late(pid=1, host=platform.node(), started_ticks=7, pid_space=f"{pid_space()}x")
    write(run, other)
    alarm = HangAlarm(run, LIMIT_S, lambda line: None)
    evidence = read_evidence(run)
    assert evidence is not None
    alarm._look(evidence, select.poll())
    seen = read_evidence(run)
    assert seen is not None
    assert not seen.is_dead(3)


def test_ranks_that_stand_in_wait_for_a_dead_one_are_a_hang(run: Path) -> None:
    dead = late(written_ns=NOW - 38 * SECOND)
    write(run, rank(0, peers={"1003": ""}), rank(1), rank(2), dead)
    account = read_account(run)
    assert account.state == HUNG
    assert "rank dead" in account.headline


DAMAGED = (
    {"event": SEEN},
    {"event": SEEN, "verdict": {"level": "alarm", "class": "never entered"}},
    {"event": SEEN, "verdict": {"class": 5, "level": "alarm"}},
    {"event": MOVED},
    {"event": MOVED, "stood_s": "long"},
    {"event": MOVED, "stood_s": float("inf")},
    [SEEN],
)


@pytest.mark.parametrize("field", ["class", "level", "text", "ranks", "places", "missing"])
@pytest.mark.parametrize("value", [5, "x", None, [1], {"1": 2}])
def test_an_event_with_anything_in_it_harms_no_reader(run: Path, field: str, value: object) -> None:
    write(run, rank(0), rank(1), rank(2), late())
    judge_now(HangAlarm(run, LIMIT_S, lambda line: None), run, NOW)
    (path,) = (run / FOLDER).glob(f"*{SUFFIX}")
    event = json.loads(path.read_text())
    event["verdict"][field] = value
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (*DAMAGED, event)))
    assert "\n".join(read_account(run).lines())
    assert say_standstill(run)
    is_hung(run)


def of_two_containers(run: Path) -> list[Status]:
    """Write three ranks of one container, and one of another in which its process id is known."""
    statuses = [rank(number, pid_space="a") for number in range(3)]
    statuses.append(late(pid=1000, pid_space="b"))
    write(run, *statuses)
    return statuses


@pytest.mark.parametrize(("space", "dead"), [("a", [0]), ("b", [3]), ("c", []), (None, [])])
def test_an_end_is_that_of_the_process_in_its_own_container(
    run: Path, space: str | None, dead: list[int]
) -> None:
    of_two_containers(run)
    content: dict[str, Any] = {"ended_ns": {"1000": NOW}, "exit_codes": {"1000": -9}}
    if space is not None:  # profkit of before wrote none
        content["pid_space"] = space
    replace_json(run / FOLDER / f"gpu01{HOST_SUFFIX}", content)
    evidence = read_evidence(run)
    assert evidence is not None
    assert [number for number in range(4) if evidence.is_dead(number)] == dead
    assert exit_codes_of(run) == dict.fromkeys(dead, -9)


def test_a_peer_is_seen_in_its_own_container(run: Path) -> None:
    statuses = of_two_containers(run)
    write(run, dataclasses.replace(statuses[1], written_ns=NOW + SECOND, peers={"1000": "T"}))
    evidence = read_evidence(run)
    assert evidence is not None
    assert [number for number in range(4) if evidence.is_stopped(number)] == [0]


def test_the_stack_of_a_worker_is_that_of_its_own_container(run: Path) -> None:
    workers = (Worker("Process-1", 7, "S"),)
    for status in of_two_containers(run):
        write(run, dataclasses.replace(status, workers=workers))
    own = rank(0, pid=7, pid_space="b", stack=IN_CODE)
    replace_json(run / FOLDER / f"gpu01{WORKER_SUFFIX}", own.as_content())
    evidence = read_evidence(run)
    assert evidence is not None
    found = {number: each.workers[0].stack for number, each in evidence.ranks.items()}
    assert found == {0: (), 1: (), 2: (), 3: IN_CODE}


def test_a_rank_of_another_container_has_not_ended(run: Path) -> None:
    """Its process id is one that ended here, and the job stands still."""
    host = platform.node()
    said: list[str] = []
    ended = rank(0, host=host, pid=1000, state=ENDED, pid_space=pid_space())
    write(run, ended, late(host=host, pid=1000, pid_space=f"{pid_space()}x"))
    alarm = HangAlarm(run, LIMIT_S, said.append)
    alarm._ends = {"1000": NOW}
    judge_now(alarm, run, NOW)
    assert said
