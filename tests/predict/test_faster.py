"""A faster phase: measured by blocks, simulated without them, and the order of causes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.experiments import FEWEST_BLOCKS, Experiment
from profkit.explain.evidence import Evidence
from profkit.explain.predict.ask import ask
from profkit.explain.predict.board import open_board
from profkit.explain.predict.prediction import (
    BATCH,
    FASTER,
    LINK,
    RANKS,
    WORKERS,
    Prediction,
    Question,
)
from profkit.vocab import EXPERIMENT_PHASES
from tests.predict.test_answers import LATE, holds, job_of, make

FORWARD = Question(FASTER, 2.0, cause="forward")


def asked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    slowed: Sequence[float],
    drift: float = 0.0,
    **others: Any,
) -> Prediction:
    """Ask about a run with blocks of these lengths in ms; the steps around them take 40 ms."""
    shares = 1e6 * np.array(slowed)
    around = np.full(len(shares), 40e6)
    drifts = np.full(len(shares), drift)
    found = Experiment("forward", shares, around, 6 * len(shares), drifts)
    found = dataclasses.replace(found, **others)
    monkeypatch.setattr(Evidence, "experiments", {"forward": found})
    return ask(make(folder, "run"), FORWARD)


def test_blocks_answer_with_an_interval_and_the_simulated_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asked(tmp_path, monkeypatch, [34, 34.5, 33.5, 34, 34.2, 33.8])
    assert answer.conclusive
    assert answer.speed_up is not None
    assert answer.speed_up.value == pytest.approx(40 / 34)
    assert answer.saved_ns is not None
    assert answer.saved_ns.low is not None
    assert 0 < answer.saved_ns.low < answer.saved_ns.value
    words = " ".join(answer.rests_on)
    assert "6 blocks in which all but forward took 2 times as long" in words
    assert "a replay without contention gives" in words


def test_too_few_blocks_are_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = asked(tmp_path, monkeypatch, [34.0] * (FEWEST_BLOCKS - 1))
    assert not answer.conclusive
    assert "3 blocks are too few" in answer.why
    assert "--experiment forward" in answer.next


def test_scattered_blocks_are_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = asked(tmp_path, monkeypatch, [20.0, 50.0, 25.0, 45.0, 34.0])
    assert not answer.conclusive
    assert "scatter" in answer.why


@pytest.mark.parametrize("outlier", [36.0, 48.0, 300.0])
def test_one_block_far_from_the_others_leaves_the_answer_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outlier: float
) -> None:
    """The interval of the blocks begins at zero, which is an end of it like any other."""
    answer = asked(tmp_path, monkeypatch, [12.0, 12.0, 12.0, outlier])
    assert not answer.conclusive
    assert answer.is_possible
    saved, gain = answer.saved_ns, answer.speed_up
    assert saved is not None
    assert saved.low is not None
    assert saved.high is not None
    assert saved.high == pytest.approx(answer.now_ns.value)
    assert saved.low <= saved.value <= saved.high
    assert gain is not None
    assert gain.low is not None
    assert 0 < gain.low <= gain.value
    assert gain.high is None, "a step of no time has no throughput"


def test_blocks_that_have_not_settled_are_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asked(tmp_path, monkeypatch, [34.0, 34.5, 33.5, 34.2], drift=0.3)
    assert not answer.conclusive
    assert "as a queue does" in answer.why


def test_blocks_that_are_not_like_the_steps_around_them_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asked(tmp_path, monkeypatch, [], dropped=7)
    assert not answer.conclusive
    assert "all 7 blocks" in answer.why
    words = asked(tmp_path / "other", monkeypatch, [34, 34.5, 33.5, 34.2], dropped=7).rests_on
    assert any("7 more blocks are not used" in each for each in words)


def test_time_that_no_block_slows_is_not_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asked(tmp_path, monkeypatch, [20.0, 20.1, 19.9, 20.0], beside_ns=10e6)
    assert answer.step_ns is not None
    now = answer.now_ns.value
    assert answer.step_ns.value == pytest.approx((now - 10e6) / 2 + 10e6)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("exposed waits only", "not known what exchange backward hides"),
        ("no replay", "not known what exchange backward hides"),
        ("a rank without files", "not known what exchange backward hides"),
        ("one rank", ""),
        ("one rank without a replay", ""),
    ],
)
def test_a_faster_backward_is_inconclusive_unless_it_is_known_what_it_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, why: str
) -> None:
    slowed = 1e6 * np.array([34, 34.5, 33.5, 34.2])
    found = Experiment("backward", slowed, np.full(4, 40e6), 24, np.zeros(4))
    monkeypatch.setattr(Evidence, "experiments", {"backward": found})
    job = make(tmp_path, "run", ranks=1 if case.startswith("one") else 2)
    if case == "a rank without files":
        shutil.rmtree(tmp_path / "run" / "r00001")
        job = job_of(tmp_path / "run")
    if case == "exposed waits only":
        assert job.model is not None
        job = dataclasses.replace(job, model=dataclasses.replace(job.model, detailed=False))
    if "replay" in case:
        job = dataclasses.replace(job, model=None, why_no_model="collectives vary")
    answer = ask(job, Question(FASTER, 2.0, cause="backward"))
    assert answer.conclusive == (not why)
    assert why in answer.why


def test_another_pace_than_the_measured_one_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(tmp_path, monkeypatch, [34.0] * 5)
    answer = ask(make(tmp_path, "again"), dataclasses.replace(FORWARD, value=3.0))
    assert not answer.conclusive
    assert "2 times as fast, no other pace" in answer.why


@pytest.mark.parametrize("phase", EXPERIMENT_PHASES)
def test_without_blocks_the_answer_is_simulated_and_says_so(tmp_path: Path, phase: str) -> None:
    half = {"data": 1, "h2d": 0.25, "forward": 6, "backward": 12, "allreduce": 1.5, "optimizer": 2}
    ranks = 2 if phase == "allreduce" else 1
    job = make(tmp_path, "run", ranks=ranks, steps=200)
    twin = make(tmp_path, "twin", ranks=ranks, steps=200, phase_ns={phase: int(half[phase] * 1e6)})
    answer = ask(job, Question(FASTER, 2.0, cause=phase))
    assert not answer.conclusive
    assert "simulated" in answer.why
    assert f"--experiment {phase}" in answer.next
    assert holds(answer, twin)


def test_an_exchange_of_one_rank_cannot_be_faster(tmp_path: Path) -> None:
    answer = ask(make(tmp_path, "run"), Question(FASTER, 2.0, cause="allreduce"))
    assert answer.step_ns is None


# -- the board -------------------------------------------------------------------------------------


def test_each_setting_begins_one_turn_up_and_is_turned_alone(tmp_path: Path) -> None:
    board = open_board(make(tmp_path, "run", ranks=2, rank_phase_ns=LATE, steps=60))
    kinds = [setting.kind for setting in board.settings]
    assert kinds == [LINK, RANKS, BATCH]
    assert [answer.question.value for answer in board.answers[:3]] == [2, 4, 64]
    turned = board.turn(1, 1)
    assert [answer.question.value for answer in turned.answers[:3]] == [2, 8, 64]
    assert turned.answers[2] is board.answers[2]
    assert turned.turn(1, -1).turn(1, -1).answers[1].question.value == 1, "2 is as recorded"
    assert board.turn(len(kinds), 1) is board, "a cause has no setting"
    causes = [answer.question.cause for answer in board.answers[3:]]
    assert "late_rank" in causes
    assert WORKERS not in kinds


def test_a_setting_ends_at_its_last_value(tmp_path: Path) -> None:
    board = open_board(make(tmp_path, "run", ranks=2, steps=60))
    for _ in range(20):
        board = board.turn(0, 1)
    assert board.answers[0].question.value == 16
    assert board.turn(0, 1) is board
