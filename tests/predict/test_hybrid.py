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
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    found = {}
    for name in ("AR", "ST"):
        folder = tmp_path_factory.mktemp(name)
        assert main(["import", str(DATA / f"trace-{name}.parquet"), "-o", str(folder)]) == 0
        (run,) = find_runs(folder)
        found[name] = job_of(run)
    return found


@pytest.fixture
def job(jobs: dict[str, Job]) -> Job:
    return jobs["ST"]


def published(share: str, name: str) -> float:
    return float(json.loads((DATA / f"{share}-{name}.json").read_text())[share.capitalize()])


@pytest.mark.parametrize(
    ("name", "cause", "share", "error"),
    [("ST", "long_last_stage", "ms", 0.0189), ("AR", "late_rank", "mw", 0.0067)],
)
def test_what_a_cause_costs_is_its_published_share(
    jobs: dict[str, Job], name: str, cause: str, share: str, error: float
) -> None:
    job = jobs[name]
    results = json.loads((DATA / f"result-{name}.json").read_text())
    means = []
    for kind in ("step_t_nodelay", "step_t_noblk"):
        times = list(results[kind].values())
        means.append(sum(times) / len(times))
    answer = ask(job, Question(WITHOUT, cause=cause))
    assert answer.conclusive
    assert answer.saved_ns is not None
    slowdown_ns = 1e9 * (means[0] - means[1])
    assert answer.saved_ns.value == pytest.approx(published(share, name) * slowdown_ns, rel=1e-3)
    assert answer.replay_error == pytest.approx(error, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "cause"),
    [("AR", "uneven_stages"), ("AR", "long_last_stage"), ("ST", "late_rank")],
)
def test_the_slowdown_of_another_cause_is_not_claimed(
    jobs: dict[str, Job], name: str, cause: str
) -> None:
    """One worker of AR is slow, and the last stage of ST is long."""
    answer = ask(jobs[name], Question(WITHOUT, cause=cause))
    assert answer.saved_ns is None
    assert "the run does not show this cause alone" in answer.why


def test_a_full_pipeline_is_as_long_as_its_longest_stage(job: Job) -> None:
    answer = ask(job, Question(NO_BUBBLE))
    assert answer.conclusive
    assert answer.step_ns is not None
    assert 0 < answer.step_ns.value < job.now_ns.value


def test_links_of_such_a_job_are_not_replayed(job: Job) -> None:
    answer = ask(job, Question(LINK, 2.0))
    assert answer.step_ns is None
    assert answer.why
