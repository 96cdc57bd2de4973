"""No answer has a step that no job can have, and none is sure of nearly everything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from profkit.explain.predict import ask as asking
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import LINK, WITHOUT, Prediction, Question
from profkit.explain.slowness import DEVICE_SHARE, UNKNOWN_SHARE
from profkit.frame.estimate import Estimate
from tests.predict.test_answers import LATE, make


@pytest.mark.parametrize(
    ("step", "saved"),
    [
        (Estimate(-5e6, -9e6, -1e6), None),
        (Estimate(-5e6, 0.0, -1e6), None),
        (Estimate(5e6, 6e6, 7e6), None),
        (Estimate(float("nan"), 0.0, 1.0), None),
        (Estimate(30e6, 29e6, 31e6), Estimate(60e6, 59e6, 61e6)),
        (Estimate(30e6, 29e6, 31e6), Estimate(10e6, 11e6, 9e6)),
    ],
)
def test_a_step_that_no_job_can_have_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Estimate, saved: Estimate | None
) -> None:
    job = make(tmp_path, "run")

    def impossible(job: Job, question: Question, base: Job | None) -> Prediction:
        return dataclasses.replace(job.answer(question), step_ns=step, saved_ns=saved)

    monkeypatch.setitem(asking.ANSWERS, LINK, impossible)
    answer = ask(job, Question(LINK, 2.0))
    assert answer.step_ns is answer.saved_ns is None
    assert "no job has" in answer.why


def test_a_step_that_may_take_no_time_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wide(job: Job, question: Question, base: Job | None) -> Prediction:
        return dataclasses.replace(job.answer(question), step_ns=Estimate(5e6, 0.0, 9e6))

    monkeypatch.setitem(asking.ANSWERS, LINK, wide)
    answer = ask(make(tmp_path, "run"), Question(LINK, 2.0))
    assert answer.step_ns is not None
    assert not answer.conclusive
    assert "reaches down to no time" in answer.why


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_imported_run_of_processors_has_no_noise_of_a_device(
    tmp_path: Path, device: str
) -> None:
    """Nothing is known of its machine, as `explain` says of the same run."""
    options = {"device": device, "ranks": 2, "rank_phase_ns": LATE, "steps": 200}
    job = make(tmp_path, "run", config={"imported_from": "trace.json"}, **options)
    share, words = job.noise
    answer = ask(job, Question(WITHOUT, cause="late_rank"))
    if device == "cuda":
        assert share == DEVICE_SHARE
        assert answer.conclusive
        return
    assert share == UNKNOWN_SHARE
    assert "device" not in words
    assert not answer.conclusive
    assert "nothing is known of the machine" in answer.why
    assert "profkit run" in answer.next
