"""Answers about sharded jobs: only data ranks can be added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.explain.predict.ask import ask
from profkit.explain.predict.prediction import RANKS, Prediction, Question
from tests.predict.test_answers import job_of
from tests.rules.test_sharded_rules import fsdp, pipeline
from tests.sharded_runs import Action, Begin, Phase, Work, both, sharded_run

MS = 1e6


def tensors(
    rank: int, dimension: str = "tp", split_ms: float = 2.0, gradients_ms: float = 0.0
) -> Iterator[Action]:
    """A step of a model whose layers are split: ranks reduce in forward and in backward."""
    del rank
    for around in ("forward", "backward"):
        yield Phase(around)
        for layer in range(2):
            yield Work(4.0)
            if split_ms:
                key = f"{around}{layer}"
                yield from both(Begin(key, "all_reduce", (0, 1), split_ms, dimension))
        yield Phase()
    yield Work(0.1)
    if gradients_ms:
        yield from both(Begin("gradients", "all_reduce", (0, 1), gradients_ms, "dp"))
    yield Work(1.0)


def answer_of(folder: Path, job: Any, question: Question, **options: Any) -> Prediction:
    run = sharded_run(folder, lambda rank: list(job(rank, **options)))
    return ask(job_of(run), question)


@pytest.mark.parametrize("job", [tensors, pipeline])
def test_further_ranks_do_not_join_the_groups_of_a_split_model(tmp_path: Path, job: Any) -> None:
    answer = answer_of(tmp_path / "run", job, Question(RANKS, 8.0))
    assert answer.step_ns is None
    assert "split among the ranks" in answer.why
    assert "--base" in answer.next


def test_ranks_that_share_samples_are_a_split_model(tmp_path: Path) -> None:
    for name, own in (("one", {"size": 1, "rank": 0}), ("unknown", {"by": "no mesh was named"})):
        config = {rank: {"data_parallel": {"by": "test", **own}} for rank in range(2)}
        run = sharded_run(tmp_path / name, lambda rank: list(tensors(rank, "")), config=config)
        answer = ask(job_of(run), Question(RANKS, 8.0))
        assert answer.step_ns is None
        assert "samples" in answer.why


def test_groups_smaller_than_the_job_do_not_say_which_of_them_grow(tmp_path: Path) -> None:
    groups = ((0, 1), (2, 3))
    run = sharded_run(tmp_path / "run", lambda rank: list(fsdp(rank, members=groups)), ranks=4)
    answer = ask(job_of(run), Question(RANKS, 8.0))
    assert answer.step_ns is None
    assert "groups of 2 of the 4 ranks" in answer.why


def test_one_group_of_all_ranks_grows_with_them(tmp_path: Path) -> None:
    assert answer_of(tmp_path / "run", fsdp, Question(RANKS, 8.0)).step_ns is not None
