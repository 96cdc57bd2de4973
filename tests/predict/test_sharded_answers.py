"""Answers about sharded jobs: only gradients can be hidden, and only data ranks can be added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.explain.predict.ask import ask
from profkit.explain.predict.prediction import OVERLAP, Prediction, Question
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


@pytest.mark.parametrize("dimension", ["tp", ""])
def test_backward_cannot_hide_the_exchange_of_split_layers(tmp_path: Path, dimension: str) -> None:
    answer = answer_of(tmp_path / "run", tensors, Question(OVERLAP), dimension=dimension)
    assert not answer.conclusive
    assert "no exchange of gradients" in answer.why
    assert answer.next
    stages = answer_of(tmp_path / "stages", pipeline, Question(OVERLAP))
    assert "no exchange of gradients" in stages.why


def test_backward_hides_gradients_and_nothing_else(tmp_path: Path) -> None:
    answer = answer_of(tmp_path / "run", tensors, Question(OVERLAP), gradients_ms=3.0)
    assert answer.saved_ns is not None
    assert answer.saved_ns.value == pytest.approx(3.0 * MS, rel=0.05)
    assert "4 collectives per step without gradients" in answer.leaves_out
    sharded = answer_of(tmp_path / "fsdp", fsdp, Question(OVERLAP), again=False)
    assert sharded.saved_ns is not None
    assert sharded.saved_ns.value == pytest.approx(3.0 * MS, rel=0.1), "all scatters but the last"
    assert "4 collectives per step without gradients" in sharded.leaves_out
