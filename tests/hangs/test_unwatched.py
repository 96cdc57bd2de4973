"""A job whose later processes train as the same ranks: `torchrun` that restarts, or a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.attached import NOTES_FILE, TRAINED
from profkit.hangs.account import FINE, UNKNOWN, read_account
from profkit.hangs.status import ENDED, FOLDER, RUNNING
from profkit.run.concluding import flag_unrecorded
from profkit.trace.flag import Flag
from profkit.trace.manifest import RunManifest
from profkit.vocab import RunState
from tests.hangs.test_verdict import calls, rank


def write(run: Path, *processes: int, state: RunState, flags: tuple[Flag, ...] = ()) -> None:
    (run / FOLDER).mkdir()
    rank(0, world_size=1, state=ENDED, stack=(), calls=()).write(run / FOLDER)
    RunManifest("job", state=state, flags=flags).write(run)
    notes = [f"{TRAINED}\t{process}\t\n" for process in processes]
    (run / NOTES_FILE).write_text("".join(notes))


def test_a_second_training_that_was_killed_may_have_hung(tmp_path: Path) -> None:
    write(tmp_path, 1000, 1001, state=RunState.RUNNING)
    account = read_account(tmp_path)
    assert account.state == UNKNOWN
    assert account.headline == (
        "inconclusive: other processes of the job trained, and nothing watched them"
    )


def test_the_flag_of_the_launcher_counts_when_its_notes_are_gone(tmp_path: Path) -> None:
    write(tmp_path, 1000, 1001, state=RunState.RUNNING)
    flags = tuple(flag_unrecorded(tmp_path, 1))
    RunManifest("job", state=RunState.ABORTED, flags=flags).write(tmp_path)
    (tmp_path / NOTES_FILE).unlink()
    assert read_account(tmp_path).state == UNKNOWN


@pytest.mark.parametrize(
    ("processes", "state"),
    [((1000,), RunState.ABORTED), ((1000, 1001), RunState.COMPLETE), ((), RunState.RUNNING)],
)
def test_a_job_that_was_watched_or_ended_well_did_not_hang(
    tmp_path: Path, processes: tuple[int, ...], state: RunState
) -> None:
    write(tmp_path, *processes, state=state)
    assert read_account(tmp_path).state == FINE


def test_a_rank_that_died_before_a_restart_is_still_said(tmp_path: Path) -> None:
    write(tmp_path, 1000, 1001, 2000, 2001, state=RunState.ABORTED)
    done = calls(55, done=True)
    peers = {"1001": ""}
    for number in (0, 1):
        status = rank(number, world_size=2, calls=done, stood_s=1.0, peers=peers, state=RUNNING)
        status.write(tmp_path / FOLDER)
        peers = {}
    account = read_account(tmp_path)
    assert account.state == UNKNOWN
