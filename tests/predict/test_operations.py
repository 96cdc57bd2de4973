"""Answers about jobs that were recorded per operation: how far their replay may be off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.whatif.operations import ReplayError
from profkit.analysis.whatif.run_operations import operations_of
from profkit.cli import main
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import WORST_REPLAY, Job
from profkit.explain.predict.prediction import NO_BUBBLE, WITHOUT, Question
from profkit.importers.base import Target
from profkit.importers.straggler import IMPORTER
from profkit.trace import Trace
from tests.pipelines import PipelinePlan, run_pipeline
from tests.predict.test_answers import job_of

QUESTIONS = (Question(NO_BUBBLE), Question(WITHOUT, cause="late_rank"))


def made(
    folder: Path, slow: Mapping[tuple[int, int], float] = {(1, 2): 2.0}, **options: Any
) -> Path:
    """Return the imported run of a job whose worker 1 on stage 2 is slow."""
    folder.mkdir(exist_ok=True)
    plan = PipelinePlan(steps=12, slow=slow, **options)
    (found,) = IMPORTER.read([run_pipeline(plan).write(folder)], Target(folder / "traces"))
    return found.run


def changed_place(run: Path, **place: Any) -> Job:
    """Return the job, whose rank 1 says another place."""
    (path,) = run.glob("r*1/rank.json")
    content = json.loads(path.read_text())
    content["config"]["coordinates"].update(place)
    path.write_text(json.dumps(content))
    return job_of(run)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_replay_that_is_far_off_predicts_nothing(tmp_path: Path, question: Question) -> None:
    near = ask(job_of(made(tmp_path / "near")), question)
    assert near.step_ns is not None
    far = ask(job_of(made(tmp_path / "far", delay_ns=60_000_000)), question)
    assert far.replay_error is not None
    assert far.replay_error > WORST_REPLAY
    assert far.step_ns is None
    assert "differs from the measured one by" in far.why


LONG_STAGE = {(0, 2): 1.5, (1, 2): 1.5}
LONG_LAST = {(0, 3): 1.5, (1, 3): 1.5}
LATE_ON_LAST = {(0, 3): 1.5, (1, 3): 2.5}


@pytest.mark.parametrize(
    ("slow", "shown"),
    [
        ({(1, 2): 2.0}, {"late_rank"}),
        ({(1, 3): 2.0}, {"late_rank"}),
        (LONG_STAGE, {"uneven_stages"}),
        (LONG_LAST, {"uneven_stages", "long_last_stage"}),
        (LATE_ON_LAST, {"uneven_stages", "late_rank"}),
        ({}, set()),
    ],
    ids=["late", "late on the last stage", "long stage", "long last stage", "both", "none"],
)
def test_only_causes_that_a_job_has_are_removed(
    tmp_path: Path, slow: Mapping[tuple[int, int], float], shown: set[str]
) -> None:
    job, found = job_of(made(tmp_path, slow)), set()
    for cause in ("late_rank", "uneven_stages", "long_last_stage"):
        answer = ask(job, Question(WITHOUT, cause=cause))
        if answer.saved_ns is not None:
            assert answer.saved_ns.value > 0.02 * job.now_ns.value
            found.add(cause)
        else:
            assert answer.why.startswith("the run does not show this cause alone: ")
    assert found == shown


def test_stages_are_levelled_and_their_scatter_stays(tmp_path: Path) -> None:
    """An even job computes as much as one with a long stage: 1.125 times as long on each."""
    everywhere = {(data_rank, stage): 1.125 for data_rank in range(2) for stage in range(4)}
    job, even = job_of(made(tmp_path / "a", LONG_STAGE)), job_of(made(tmp_path / "b", everywhere))
    answer = ask(job, Question(WITHOUT, cause="uneven_stages"))
    assert answer.step_ns is not None
    assert answer.step_ns.value == pytest.approx(even.now_ns.value, rel=0.01)


def test_with_one_data_parallel_rank_a_late_rank_looks_like_a_long_stage(tmp_path: Path) -> None:
    job = job_of(made(tmp_path, {(0, 2): 2.0}, data_ranks=1))
    late = ask(job, Question(WITHOUT, cause="late_rank"))
    assert late.saved_ns is None
    assert "no longer than others on its stage" in late.why
    stages = ask(job, Question(WITHOUT, cause="uneven_stages"))
    assert stages.saved_ns is not None
    assert stages.saved_ns.value > 0
    assert any("looks like a long stage" in each for each in stages.leaves_out)


@pytest.mark.parametrize("value", ["x", None, float("inf"), float("nan"), 1e300, -1, [1], 1.5])
@pytest.mark.parametrize("dimension", ["dp", "pp"])
def test_a_place_that_is_no_number_is_a_reason(
    tmp_path: Path, dimension: str, value: object
) -> None:
    job = changed_place(made(tmp_path), **{dimension: value})
    with pytest.raises(ReplayError, match="rank 1 does not say its place"):
        operations_of(Trace.open(job.evidence.trace.path))
    for question in QUESTIONS:
        answer = ask(job, question)
        assert not answer.conclusive
        assert answer.why
    path = str(job.evidence.trace.path)
    assert main(["whatif", path, "--no-bubble"]) == 11
    assert main(["explain", path, path]) in (0, 11)
