"""A run scores a prediction about a cause if it measured that the cause is gone, and only then."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.apart import Apart
from profkit.analysis.costs import EVALUATION
from profkit.analysis.estimate import Estimate, Floats
from profkit.analysis.trend import Trend
from profkit.explain.predict import alone
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import WITHOUT, Question
from profkit.explain.predict.record import keep
from profkit.explain.predict.scoring import has_effect, score_record
from profkit.explain.rules.garbage_pauses import garbage_ns
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import BAD_TIMES, RECORD, Phase
from tests.predict.test_answers import LATE, job_of
from tests.predict.test_record import touch

LATER_S = 60
MS = 1_000_000


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(
        tmp_path_factory.mktemp("absent") / "run", ranks=2, steps=200, phase_ns={"data": 100_000}
    )


def is_gone(job: Job, cause: str) -> bool:
    return has_effect({"kind": WITHOUT, "cause": cause}, job, 0.0)


@pytest.mark.parametrize(
    "cause",
    [
        "late_rank",
        "input_bound",
        "input_stalls",
        "evaluation_in_training",
        "checkpoint_in_training",
        "drift",
        "time_outside_phases",
        "accumulation_without_no_sync",
    ],
)
def test_a_run_that_measured_no_cause_scores(healthy: Path, cause: str) -> None:
    assert is_gone(job_of(healthy), cause)


@pytest.mark.parametrize("ns", [None, 0.2 * MS, 20.0 * MS, math.nan])
def test_garbage_is_gone_if_it_was_watched(healthy: Path, ns: float | None) -> None:
    """A run with --collect none did not look."""
    job = job_of(healthy)
    job.evidence.figures[garbage_ns] = None if ns is None else Estimate(ns, 0.9 * ns, 1.1 * ns)
    assert is_gone(job, "garbage_pauses") is (ns == 0.2 * MS)


def test_few_steps_show_no_trend(tmp_path: Path) -> None:
    assert not is_gone(job_of(synthetic_trace(tmp_path / "run", steps=30)), "drift")


def test_a_trend_that_may_be_chance_is_not_gone(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Estimate(5.0 * MS, -1.0 * MS, 11.0 * MS)
    trend = Trend(20.0 * MS, 30.0 * MS, 0.7, rises_throughout=False, added_ns=added)
    monkeypatch.setattr(alone, "find_trend", lambda costs: trend)
    assert not is_gone(job_of(healthy), "drift")


def waiting(job: Job, share: float, ns: float) -> Job:
    """The job, if a share of its steps waited so long for their batch."""
    assert job.model is not None
    waits: Floats = np.full((len(job.model.lines), len(job.model.steps)), 1_000.0)
    waits[:, : round(share * waits.shape[1])] = ns
    return dataclasses.replace(job, model=job.model.with_part(Phase.DATA.value, waits))


@pytest.mark.parametrize(("share", "gone"), [(0.0, True), (0.1, False), (0.4, False), (0.8, False)])
def test_stalls_that_became_more_are_not_gone(healthy: Path, share: float, gone: bool) -> None:
    assert is_gone(waiting(job_of(healthy), share, 50.0 * MS), "input_stalls") is gone


@pytest.mark.parametrize("cause", ["input_stalls", "input_bound"])
def test_waits_that_nobody_timed_are_not_gone(tmp_path: Path, cause: str) -> None:
    """As those of a loader of the job's own: they are in `unknown`."""
    job = job_of(synthetic_trace(tmp_path / "run", phase_ns={"data": 0}))
    assert not is_gone(job, cause)


@pytest.mark.parametrize("cause", ["evaluation_in_training", "checkpoint_in_training"])
def test_an_evaluation_that_is_excluded_is_not_gone(healthy: Path, cause: str) -> None:
    job = job_of(healthy)
    apart = Apart(EVALUATION, 3, 5.0 * MS)
    job.evidence.costs = dataclasses.replace(job.evidence.costs, apart=(apart,))
    assert not is_gone(job, cause)


def test_ranks_whose_exchange_was_not_timed_may_be_late(healthy: Path) -> None:
    job = job_of(healthy)
    assert is_gone(job, "late_rank")
    job.evidence.costs = dataclasses.replace(job.evidence.costs, exchange_timed=False)
    assert not is_gone(job, "late_rank")


@pytest.mark.parametrize("cause", ["late_rank", "exposed_communication", "uneven_stages"])
def test_one_rank_shows_nothing_about_several(tmp_path: Path, cause: str) -> None:
    assert not is_gone(job_of(synthetic_trace(tmp_path / "run")), cause)


def lose_the_late_rank(run: Path) -> None:
    shutil.rmtree(run / "r00001")


def lose_its_steps(run: Path) -> None:
    (run / "r00001" / "steps.arrows").unlink()


def change_a_file(run: Path) -> None:
    path = run / "r00000" / "end.json"
    content = json.loads(path.read_text())
    content["tables"]["steps"]["crc32"] ^= 1
    path.write_text(json.dumps(content))


def doubt_the_times(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    content["flags"] = [f"{BAD_TIMES[0]}7 kernels of 236 years"]
    (run / "run.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "harm", [lose_the_late_rank, lose_its_steps, change_a_file, doubt_the_times]
)
def test_a_run_without_a_verdict_scores_nothing(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """A score is never taken back."""
    first = synthetic_trace(tmp_path / "late", ranks=3, rank_phase_ns=LATE)
    answer = job_of(first).answer(Question(WITHOUT, cause="late_rank"))
    answer = dataclasses.replace(answer, step_ns=Estimate(1.0, 0.5, 2.0))
    keep(answer, Trace.open(first), tmp_path / RECORD)
    again = synthetic_trace(tmp_path / "again", ranks=3, seed=1)
    touch(again, LATER_S)
    whole = Path(shutil.copytree(again, tmp_path / "elsewhere" / "again"))
    harm(again)
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None
    shutil.rmtree(again)
    whole.rename(again)
    assert score_record(tmp_path / RECORD, tmp_path)[0].scored_run == "again"
