"""Answers about a public hybrid-parallel job agree with its published shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import LINK, NO_BUBBLE, WITHOUT, Question
from profkit.trace.folders import find_runs
from tests.predict.test_answers import job_of

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "straggler"

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the public traces (../shared/data) are not here"
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("runs")
    assert main(["import", str(DATA / "trace-ST.parquet"), "-o", str(folder)]) == 0
    (run,) = find_runs(folder)
    return job_of(run)


def published(name: str) -> float:
    return float(json.loads((DATA / f"{name}-ST.json").read_text())[name.capitalize()])


@pytest.mark.parametrize(("cause", "share"), [("long_last_stage", "ms"), ("late_rank", "mw")])
def test_what_a_cause_costs_is_its_published_share(job: Job, cause: str, share: str) -> None:
    results = json.loads((DATA / "result-ST.json").read_text())
    means = []
    for name in ("step_t_nodelay", "step_t_noblk"):
        times = list(results[name].values())
        means.append(sum(times) / len(times))
    answer = ask(job, Question(WITHOUT, cause=cause))
    assert answer.conclusive
    assert answer.saved_ns is not None
    slowdown_ns = 1e9 * (means[0] - means[1])
    assert answer.saved_ns.value == pytest.approx(published(share) * slowdown_ns, rel=1e-3)
    assert answer.replay_error == pytest.approx(0.0189, abs=1e-3)


def test_a_full_pipeline_is_as_long_as_its_longest_stage(job: Job) -> None:
    answer = ask(job, Question(NO_BUBBLE))
    assert answer.conclusive
    assert answer.step_ns is not None
    assert 0 < answer.step_ns.value < job.now_ns.value


def test_links_of_such_a_job_are_not_replayed(job: Job) -> None:
    answer = ask(job, Question(LINK, 2.0))
    assert answer.step_ns is None
    assert answer.why
