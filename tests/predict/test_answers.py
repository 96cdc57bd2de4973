"""Answers about synthetic runs, compared with the twins in which the change was made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.whatif.changes import with_loaders
from profkit.analysis.whatif.loader_model import MAKING, LoaderLine
from profkit.explain.evidence import Evidence
from profkit.explain.explained import explain
from profkit.explain.predict.alone import ALONE, shown_alone
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job, open_job
from profkit.explain.predict.prediction import (
    FASTER,
    KINDS,
    LINK,
    RANKS,
    WITHOUT,
    WORKERS,
    Prediction,
    Question,
)
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import FASTER_PHASES

LATE: Mapping[int, Mapping[str, int]] = {1: {"forward": 20_000_000}}


def job_of(path: Path) -> Job:
    trace = Trace.open(path)
    return open_job(Evidence(trace))


def make(folder: Path, name: str, **options: Any) -> Job:
    return job_of(synthetic_trace(folder / name, **options))


def holds(answer: Prediction, twin: Job) -> bool:
    step, truth = answer.step_ns, twin.now_ns.value
    assert step is not None
    assert step.low is not None
    assert step.high is not None
    assert step.value == pytest.approx(truth, rel=0.05)
    return step.low <= truth <= step.high


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_healthy_twin_is_predicted_from_the_run_with_a_late_rank(
    tmp_path: Path, device: str
) -> None:
    late = make(tmp_path, "late", ranks=2, rank_phase_ns=LATE, device=device, steps=200)
    twin = make(tmp_path, "twin", ranks=2, device=device, steps=200)
    answer = ask(late, Question(WITHOUT, cause="late_rank"))
    assert answer.conclusive
    assert holds(answer, twin)
    assert answer.speed_up is not None
    assert answer.speed_up.value > 1.1
    assert "rank 1 works" in answer.rests_on[0]


def test_a_healthy_run_shows_no_late_rank(tmp_path: Path) -> None:
    healthy = make(tmp_path, "run", ranks=2)
    assert "late_rank" not in shown_alone(healthy)
    answer = ask(healthy, Question(WITHOUT, cause="late_rank"))
    assert answer.step_ns is None
    assert "does not show" in answer.why


def test_explain_and_whatif_give_the_same_step_without_a_cause(tmp_path: Path) -> None:
    paths = [
        synthetic_trace(tmp_path / "base", ranks=2, steps=200),
        synthetic_trace(tmp_path / "late", ranks=2, steps=200, rank_phase_ns=LATE),
    ]
    view = explain(Trace.open(paths[0]), Trace.open(paths[1]))
    (cause,) = [each for each in view.causes if each.kind == "late_rank"]
    base, late = map(job_of, paths)
    answer = ask(late, Question(WITHOUT, cause="late_rank"), base)
    assert cause.without_ns is not None
    assert answer.step_ns is not None
    assert cause.without_ns.value == pytest.approx(answer.step_ns.value)
    assert holds(answer, base)


def test_a_cause_that_explain_does_not_find_is_not_removed(tmp_path: Path) -> None:
    base, same = make(tmp_path, "base"), make(tmp_path, "same", seed=1)
    answer = ask(same, Question(WITHOUT, cause="drift"), base)
    assert not answer.conclusive
    assert "finds no cost of drift" in answer.why


def test_evaluation_is_removed_with_its_own_time(tmp_path: Path) -> None:
    evaluates = make(tmp_path, "run", phase_ns={"other": 5_000_000})
    twin = make(tmp_path, "twin")
    answer = ask(evaluates, Question(WITHOUT, cause="evaluation_in_training"))
    assert answer.conclusive
    assert holds(answer, twin)


def test_faster_links_shorten_what_is_exposed(tmp_path: Path) -> None:
    slow = make(tmp_path, "run", ranks=2, phase_ns={"allreduce": 12_000_000}, steps=200)
    twin = make(tmp_path, "twin", ranks=2, phase_ns={"allreduce": 6_000_000}, steps=200)
    answer = ask(slow, Question(LINK, 2.0))
    step = answer.step_ns
    assert step is not None
    assert step.low is not None
    assert step.high is not None
    assert step.low <= twin.now_ns.value <= step.high


def test_links_need_an_exchange(tmp_path: Path) -> None:
    alone = make(tmp_path, "run")
    answer = ask(alone, Question(LINK, 2.0))
    assert answer.step_ns is None
    assert "no exchange" in answer.why


def test_more_ranks_wait_for_the_slowest_of_them(tmp_path: Path) -> None:
    few = make(tmp_path, "few", ranks=4, steps=300, jitter=0.1)
    many = make(tmp_path, "many", ranks=16, steps=300, jitter=0.1, seed=3)
    answer = ask(few, Question(RANKS, 16.0))
    step, model = answer.step_ns, many.model
    assert step is not None
    assert step.low is not None
    assert step.high is not None
    assert step.low <= many.now_ns.value <= step.high
    (wanted,) = [point for point in answer.points if point.ranks == 16]
    assert model is not None
    own = model.own_work()
    assert wanted.tail_ns == pytest.approx((own - own.mean(axis=0)).max(axis=0).mean(), rel=0.1)
    assert [point.ranks for point in answer.points][:5] == [1, 2, 4, 8, 16]
    steps = [point.step_ns.value for point in answer.points]
    assert steps == sorted(steps)
    assert answer.knee
    (here,) = [point for point in answer.points if point.ranks == 4]
    assert here.step_ns.value == pytest.approx(few.now_ns.value)


def test_one_rank_says_nothing_of_the_exchange(tmp_path: Path) -> None:
    answer = ask(make(tmp_path, "run"), Question(RANKS, 8.0))
    assert not answer.conclusive
    assert "exchange" in answer.why
    assert "ceilings" in answer.next
    assert all(point.links_ns is None for point in answer.points)


def test_a_missing_rank_leaves_the_number_of_ranks_open(tmp_path: Path) -> None:
    path = synthetic_trace(tmp_path / "run", ranks=3)
    for file in (path / "r00002").iterdir():
        file.unlink()
    (path / "r00002").rmdir()
    assert not ask(job_of(path), Question(RANKS, 8.0)).conclusive


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [2, 12, 100])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_question_has_an_answer_or_a_reason(
    tmp_path: Path, kind: str, steps: int, ranks: int
) -> None:
    job = make(tmp_path, "run", steps=steps, ranks=ranks)
    causes = {WITHOUT: [*ALONE, "launch_bound"], FASTER: FASTER_PHASES}
    for cause in causes.get(kind, [""]):
        answer = ask(job, Question(kind, 2.0, cause))
        assert answer.conclusive or answer.why
        assert answer.is_possible
        if answer.step_ns is not None and answer.step_ns.low is not None:
            assert answer.step_ns.high is not None
            assert 0 <= answer.step_ns.low <= answer.step_ns.value <= answer.step_ns.high
            assert answer.rests_on
        if steps < 8:
            assert not answer.conclusive


def test_workers_need_a_loader_that_was_recorded(tmp_path: Path) -> None:
    answer = ask(make(tmp_path, "run"), Question(WORKERS, 4.0))
    assert answer.step_ns is None
    assert "not recorded" in answer.why


@pytest.mark.parametrize(("hosts", "cores", "competes"), [(2, 12, 0), (2, 9, 10), (1, 12, 20)])
def test_workers_share_the_cores_of_their_host(
    tmp_path: Path, hosts: int, cores: int, competes: int
) -> None:
    """4 ranks with 4 workers each, on hosts of so many cores."""
    run = synthetic_trace(tmp_path / "run", ranks=4)
    for path in run.glob("r*/rank.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "host": f"host{content['rank'] % hosts}"}))
    content = json.loads((run / "run.json").read_text())
    content["environment"]["cpu_count"] = cores
    (run / "run.json").write_text(json.dumps(content))
    job = job_of(run)
    assert job.model is not None
    pieces = np.full((len(MAKING), len(job.model.steps)), 300e6)
    line = LoaderLine(pieces, workers=1, prefetch=2, handover=0.0, taking=1e5)
    job = dataclasses.replace(job, model=with_loaders(job.model, [line] * 4))
    answer = ask(job, Question(WORKERS, 4.0))
    shared = [each for each in answer.rests_on if "share" in each]
    if competes:
        processes = f"{competes} processes" + " of a host" * (hosts > 1)
        assert shared == [f"{processes} share {cores} cores at the upper end"]
        assert answer.why == f"{processes} would compete for {cores} cores"
    else:
        assert shared == []
        assert "compete" not in answer.why


@pytest.mark.parametrize(("hosts", "wanted", "competes"), [(2, 30, 0), (2, 40, 32), (1, 30, 16)])
def test_ranks_on_processors_share_the_cores_of_their_hosts(
    tmp_path: Path, hosts: int, wanted: int, competes: int
) -> None:
    """Each rank uses a core; a host has 16."""
    run = synthetic_trace(tmp_path / "run", ranks=4)
    for path in run.glob("r*/rank.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "host": f"host{content['rank'] % hosts}"}))
    why = ask(job_of(run), Question(RANKS, float(wanted))).why
    assert ("compete" in why) == bool(competes)
    if competes:
        assert f"would compete for {competes} cores" in why


def test_the_interval_is_at_least_the_noise_between_runs(tmp_path: Path) -> None:
    job = make(tmp_path, "run", ranks=2, phase_ns={"other": 5_000_000})
    answer = ask(job, Question(WITHOUT, cause="evaluation_in_training"))
    step = answer.step_ns
    assert step is not None
    assert step.high is not None
    assert step.high / step.value - 1 >= job.noise[0]
    assert job.noise[0] in (0.08, 0.25)


def test_a_replay_that_is_far_off_answers_nothing(tmp_path: Path) -> None:
    job = make(tmp_path, "run", ranks=2)
    assert job.model is not None
    wrong = dataclasses.replace(job, walls=job.walls * np.array(1.0), model=None, why_no_model="x")
    for kind in (LINK, WORKERS, RANKS):
        answer = ask(wrong, Question(kind, 2.0))
        assert answer.step_ns is None
        assert answer.why == "x"


def test_what_a_late_rank_catches_up_with_is_not_saved(tmp_path: Path) -> None:
    uneven = {1: {"forward": 20_000_000, "optimizer": 1_000_000}}
    job = make(tmp_path, "run", ranks=2, rank_phase_ns=uneven, steps=200)
    answer = ask(job, Question(WITHOUT, cause="late_rank"))
    assert answer.saved_ns is not None
    assert answer.saved_ns.value == pytest.approx(5_000_000, rel=0.15)


def test_what_is_saved_lacks_the_noise_between_runs(tmp_path: Path) -> None:
    job = make(tmp_path, "run", ranks=2, rank_phase_ns=LATE, steps=200)
    answer = ask(job, Question(WITHOUT, cause="late_rank"))
    saved, step = answer.saved_ns, answer.step_ns
    assert saved is not None
    assert step is not None
    assert saved.low is not None
    assert saved.high is not None
    assert step.low is not None
    assert step.high is not None
    assert saved.high - saved.low < (step.high - step.low) / 2
    twin = make(tmp_path, "twin", ranks=2, steps=200)
    assert saved.value == pytest.approx(job.now_ns.value - twin.now_ns.value, rel=0.05)


@pytest.mark.parametrize("lost", [["r00001"], ["r00000", "r00001"]])
@pytest.mark.parametrize("kind", [LINK, RANKS])
def test_lost_phases_are_no_conclusive_answer(tmp_path: Path, kind: str, lost: list[str]) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2)
    for rank in lost:
        (run / rank / "spans.arrows").unlink()
    answer = ask(job_of(run), Question(kind, 2.0))
    assert not answer.conclusive
    assert answer.why


def test_lost_collectives_leave_the_waits(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2, rank_phase_ns=LATE, steps=200)
    (run / "r00001" / "collectives.arrows").unlink()
    twin = make(tmp_path, "twin", ranks=2, steps=200)
    assert holds(ask(job_of(run), Question(WITHOUT, cause="late_rank")), twin)


def test_a_rank_without_files_is_named(tmp_path: Path) -> None:
    path = synthetic_trace(tmp_path / "run", ranks=3, phase_ns={"other": 5_000_000})
    for file in (path / "r00002").iterdir():
        file.unlink()
    (path / "r00002").rmdir()
    answer = ask(job_of(path), Question(WITHOUT, cause="evaluation_in_training"))
    assert any("without files" in each for each in answer.leaves_out)
