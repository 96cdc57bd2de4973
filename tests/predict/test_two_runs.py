"""What a job lost between two runs is an answer only if they are one job on one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import RANKS, Question
from profkit.frame.estimate import Estimate
from tests.predict.test_answers import job_of, make


def changed(job: Job, **config: object) -> Job:
    """Return the job, recorded with other settings."""
    path = job.evidence.trace.path / "run.json"
    content = json.loads(path.read_text())
    content["config"] = {**content["config"], **config}
    path.write_text(json.dumps(content))
    return job_of(path.parent)


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"model": "other"}, "model (small and other)"),
        ({"workers": 8}, "workers"),
        ({"precision": "amp"}, "precision"),
        ({"model": "other", "workers": 8, "pin": 1, "seed": 9}, "3 other settings"),
    ],
)
def test_two_runs_of_different_jobs_are_no_line(
    tmp_path: Path, differs: dict[str, object], words: str
) -> None:
    same = {"model": "small", "workers": 2}
    base, job = (make(tmp_path, str(ranks), ranks=ranks, config=same) for ranks in (2, 4))
    assert ask(job, Question(RANKS, 48.0), base).step_ns is not None
    answer = ask(changed(job, **differs), Question(RANKS, 48.0), base)
    assert answer.step_ns is None
    assert words in answer.why
    assert answer.next


def test_what_follows_from_the_change_is_no_other_job(tmp_path: Path) -> None:
    few, many = make(tmp_path, "few", ranks=1), make(tmp_path, "many", ranks=4)
    many = changed(many, global_batch_size=128, ddp_bucket_bytes=25_000_000, lr=0.2)
    few = changed(few, global_batch_size=32, command=["python", "train.py", "--batch", "32"])
    assert "differ" not in ask(many, Question(RANKS, 8.0), few).why
    few, many = (changed(each, parallel={"dp": n, "tp": 1}) for each, n in ((few, 1), (many, 4)))
    assert "differ" not in ask(many, Question(RANKS, 8.0), few).why
    many = changed(many, parallel={"dp": 1, "tp": 4})
    assert "parallel.tp (1 and 4)" in ask(many, Question(RANKS, 8.0), few).why


def test_two_machines_are_no_line(tmp_path: Path) -> None:
    base, job = (make(tmp_path, str(n), ranks=n, config={"cpu": "one"}) for n in (2, 4))
    answer = ask(changed(job, cpu="another"), Question(RANKS, 8.0), base)
    assert answer.step_ns is None
    assert "cpu (one and another)" in answer.why
    on_device = make(tmp_path, "device", ranks=4, device="cuda", config={"cpu": "one"})
    assert "device (cpu and cuda)" in ask(on_device, Question(RANKS, 8.0), base).why


def test_ranks_that_share_a_batch_are_extended_by_its_two_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the step is the same on all ranks: 4 ranks took 1.5 times as long as 8."""
    base, job = make(tmp_path, "few", ranks=4), make(tmp_path, "many", ranks=8)
    samples = {base: 64.0, job: 64.0}
    for each, step_ns, mine in ((base, 600.0, 16.0), (job, 400.0, 8.0)):
        each.now_ns = Estimate(step_ns, 0.99 * step_ns, 1.01 * step_ns)
        each.evidence.costs.samples[:] = int(mine)
    monkeypatch.setattr(Job, "samples", property(samples.__getitem__))
    answer = ask(job, Question(RANKS, 16.0), base)
    constant_part, same_gain = 200.0 + 1600.0 / 16, 400.0 * 400 / 600
    assert answer.step_ns is not None
    assert answer.step_ns.value == pytest.approx((constant_part + same_gain) / 2)
    assert answer.step_ns.low is not None
    assert answer.step_ns.high is not None
    assert answer.step_ns.low < same_gain < constant_part < answer.step_ns.high
    assert answer.samples == 64
    samples[job] = 100.0
    assert "and in those of all ranks" in ask(job, Question(RANKS, 16.0), base).why


def test_an_interval_grows_with_the_distance_from_both_runs(tmp_path: Path) -> None:
    base, job = make(tmp_path, "few", ranks=2), make(tmp_path, "many", ranks=4)
    widths = []
    for ranks in (4.0, 8.0, 16.0):
        step = ask(job, Question(RANKS, ranks), base).step_ns
        assert step is not None
        assert step.low is not None
        assert step.high is not None
        widths.append((step.high - step.low) / step.value)
    assert widths[1] > widths[0] + 0.15
    assert widths[2] > widths[1] + 0.15
