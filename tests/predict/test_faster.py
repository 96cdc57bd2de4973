"""A faster phase, from a replay."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.errors import UsageError
from profkit.explain.predict import ask as predict_ask
from profkit.explain.predict.ask import answer_all, ask
from profkit.explain.predict.job import read_job
from profkit.explain.predict.prediction import FASTER, WORKERS, Question
from profkit.trace import Trace
from profkit.vocab import FASTER_PHASES
from tests.house.test_packaging import TOP
from tests.predict.test_answers import LATE, holds, job_of, make


@pytest.mark.parametrize("phase", FASTER_PHASES)
def test_the_twin_with_a_faster_phase_is_in_the_interval(tmp_path: Path, phase: str) -> None:
    half = {"data": 1, "h2d": 0.25, "forward": 6, "backward": 12, "allreduce": 1.5, "optimizer": 2}
    ranks = 2 if phase == "allreduce" else 1
    job = make(tmp_path, "run", ranks=ranks, steps=200)
    twin = make(tmp_path, "twin", ranks=ranks, steps=200, phase_ns={phase: int(half[phase] * 1e6)})
    answer = ask(job, Question(FASTER, 2.0, cause=phase))
    assert answer.conclusive
    assert holds(answer, twin)
    assert "what phases take from each other" in answer.leaves_out[0]


def test_an_exchange_of_one_rank_cannot_be_faster(tmp_path: Path) -> None:
    answer = ask(make(tmp_path, "run"), Question(FASTER, 2.0, cause="allreduce"))
    assert answer.step_ns is None


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("exposed waits only", "not known what exchange backward hides"),
        ("a rank without files", "not known what exchange backward hides"),
        ("two ranks", ""),
        ("one rank", ""),
    ],
)
def test_a_faster_backward_is_inconclusive_unless_it_is_known_what_it_hides(
    tmp_path: Path, case: str, why: str
) -> None:
    job = make(tmp_path, "run", ranks=1 if case == "one rank" else 2)
    if case == "a rank without files":
        shutil.rmtree(tmp_path / "run" / "r00001")
        job = job_of(tmp_path / "run")
    assert job.model is not None
    detailed = case != "exposed waits only"
    job = dataclasses.replace(job, model=dataclasses.replace(job.model, detailed=detailed))
    answer = ask(job, Question(FASTER, 2.0, cause="backward"))
    assert answer.conclusive == (not why)
    assert why in answer.why
    assert ask(job, Question(FASTER, 2.0, cause="forward")).conclusive


def test_all_that_a_run_answers_has_the_largest_gain_first(tmp_path: Path) -> None:
    answers = answer_all(make(tmp_path, "run", ranks=2, rank_phase_ns=LATE, steps=60))
    assert answers[0].question.words == "without a late rank"
    steps = [answer.step_ns.value for answer in answers if answer.step_ns is not None]
    assert steps == sorted(steps)
    with pytest.raises(UsageError, match="shows no cause by itself"):
        answer_all(make(tmp_path, "alone", phase_ns={"data": 0}))


def test_a_run_that_waits_for_data_says_how_many_workers_would_be_enough() -> None:
    trace = Trace.open(TOP / "traces/recorded-resnet50-workers-0")
    answers = answer_all(read_job(trace))
    found = [answer for answer in answers if answer.question.kind == WORKERS]
    assert [answer.question.words for answer in found] == ["1 loader worker per rank"]


@pytest.mark.parametrize(
    ("workers", "enough", "unexplained_ns", "proposed"),
    [(2, 6, 0.0, 6), (6, 6, 0.0, 0), (2, 17, 0.0, 0), (2, 6, 1.0, 0), (2, None, 0.0, 0)],
)
def test_workers_are_proposed_that_would_hide_the_loader(
    workers: int,
    enough: int | None,
    unexplained_ns: float,
    proposed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = SimpleNamespace(workers=workers, enough=enough)
    view = SimpleNamespace(model=model, unexplained_ns=unexplained_ns)
    job: Any = SimpleNamespace(evidence=SimpleNamespace(trace=None))
    monkeypatch.setattr(predict_ask, "build_loader_view", lambda trace: view)
    assert predict_ask.enough_workers(job) == proposed
