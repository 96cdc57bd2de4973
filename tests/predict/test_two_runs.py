"""A line through two runs is an answer only if they are one job on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import BATCH, RANKS, Question
from tests.predict.test_answers import job_of, make
from tests.predict.test_record import touch


def batches(folder: Path, *sizes: tuple[int, float], **options: Any) -> list[Job]:
    """Return runs of some batch sizes, whose forward takes these times in ms."""
    jobs = []
    for size, ms in sizes:
        phases = {"forward": round(ms * 1e6)}
        jobs.append(make(folder, str(size), batch_size=size, phase_ns=phases, **options))
    return jobs


def changed(job: Job, **config: object) -> Job:
    """Return the job, recorded with other settings."""
    path = job.evidence.trace.path
    touch(path, 0, **config)
    return job_of(path)


def test_a_line_that_falls_below_zero_is_no_answer(tmp_path: Path) -> None:
    base, job = batches(tmp_path, (64, 60.0), (128, 180.0))
    answer = ask(job, Question(BATCH, 8.0), base)
    assert answer.step_ns is None
    assert not answer.conclusive
    assert "no time" in answer.why
    assert "nearer to that batch size" in answer.next


def test_a_step_that_grows_faster_than_its_batch_is_on_no_line(tmp_path: Path) -> None:
    base, job = batches(tmp_path, (64, 60.0), (128, 180.0))
    for samples in (24.0, 256.0):
        answer = ask(job, Question(BATCH, samples), base)
        assert answer.step_ns is None
        assert "grows faster than the batch" in answer.why
    assert ask(job, Question(BATCH, 96.0), base).step_ns is not None, "it is between the two"


def test_steps_that_are_shorter_with_more_samples_are_of_two_jobs(tmp_path: Path) -> None:
    base, job = batches(tmp_path, (64, 90.0), (128, 20.0))
    answer = ask(job, Question(BATCH, 96.0), base)
    assert answer.step_ns is None
    assert "shorter with more samples" in answer.why


def test_an_interval_as_long_as_the_predicted_step_is_wide(tmp_path: Path) -> None:
    """Next to the recorded step it is short, but it leaves the predicted one open."""
    base, job = batches(tmp_path, (64, 40.0), (128, 105.0))
    answer = ask(job, Question(BATCH, 8.0), base)
    assert not answer.conclusive
    assert answer.why


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"model": "other"}, "model (small and other)"),
        ({"workers": 8}, "workers"),
        ({"precision": "amp"}, "precision"),
        ({"model": "other", "workers": 8, "pin": 1, "seed": 9}, "3 other settings"),
    ],
)
@pytest.mark.parametrize("kind", [BATCH, RANKS])
def test_two_runs_of_different_jobs_are_no_line(
    tmp_path: Path, kind: str, differs: dict[str, object], words: str
) -> None:
    same = {"model": "small", "workers": 2}
    if kind == BATCH:
        base, job = batches(tmp_path, (16, 10.0), (32, 20.0), config=same)
    else:
        base, job = (make(tmp_path, str(ranks), ranks=ranks, config=same) for ranks in (2, 4))
    assert ask(job, Question(kind, 3.0 * 16), base).step_ns is not None
    answer = ask(changed(job, **differs), Question(kind, 3.0 * 16), base)
    assert answer.step_ns is None
    assert words in answer.why
    assert answer.next


def test_what_follows_from_the_change_is_no_other_job(tmp_path: Path) -> None:
    base, job = batches(tmp_path, (16, 10.0), (32, 20.0))
    base, job = (
        changed(base, global_batch_size=16, lr=0.1),
        changed(job, global_batch_size=32, lr=0.2, command=["python", "train.py", "--batch", "32"]),
    )
    assert ask(job, Question(BATCH, 48.0), base).step_ns is not None
    few, many = make(tmp_path, "few", ranks=1), make(tmp_path, "many", ranks=4)
    many = changed(many, global_batch_size=128, ddp_bucket_bytes=25_000_000)
    few = changed(few, global_batch_size=32)
    assert "differ" not in ask(many, Question(RANKS, 8.0), few).why
    few, many = (changed(each, parallel={"dp": n, "tp": 1}) for each, n in ((few, 1), (many, 4)))
    assert "differ" not in ask(many, Question(RANKS, 8.0), few).why
    many = changed(many, parallel={"dp": 1, "tp": 4})
    assert "parallel.tp (1 and 4)" in ask(many, Question(RANKS, 8.0), few).why


def test_two_machines_are_no_line(tmp_path: Path) -> None:
    base, job = batches(tmp_path, (16, 10.0), (32, 20.0), config={"cpu": "one"})
    answer = ask(changed(job, cpu="another"), Question(BATCH, 64.0), base)
    assert answer.step_ns is None
    assert "cpu (one and another)" in answer.why
    on_device = make(tmp_path, "device", batch_size=32, device="cuda", config={"cpu": "one"})
    assert "device (cpu and cuda)" in ask(on_device, Question(BATCH, 64.0), base).why
