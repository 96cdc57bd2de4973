"""What a run's configuration says of slow lines, whoever wrote it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from profkit.analysis.slow_lines import describe_slow_lines, slow_lines

GOOD: dict[str, Any] = {
    "lines": 3,
    "lines_in_all": 40,
    "steps_per_line": 10,
    "step_ns": 2e8,
    "others_ns": 1e8,
    "excess_ns": 7.5e6,
}


def say(**more: float) -> str:
    slow = slow_lines({"slow_lines": {**GOOD, **more}})
    assert slow is not None
    return describe_slow_lines(slow)


@pytest.mark.parametrize(
    ("data_ns", "words"),
    [
        (9e6, "is longer by more than the difference"),
        (6e6, "explains 80 % of the difference"),
        (1.5e6, "explains only 20 % of the difference"),
        (1e5, "does not explain the difference"),
        (-1e6, "does not explain the difference"),
    ],
)
def test_the_reader_is_blamed_for_what_it_explains(data_ns: float, words: str) -> None:
    said = say(excess_data_ns=data_ns, data_ns=8e7, others_data_ns=1e6)
    assert said.startswith("3 of 40 windows of 10 steps take 200 ms per step, the others 100 ms")
    assert words in said


def test_a_log_without_waits_blames_nobody() -> None:
    assert "does not say if they waited" in say()


def test_epochs_are_named_only_if_the_log_prints_them() -> None:
    assert "about every 46 steps, as epochs or checkpoints would" in say(every_steps=46.0)
    said = say(every_steps=46.0, epoch_starts=2)
    assert "an epoch begins in 2 of them; they come about every 46 steps;" in said
    assert "an epoch begins in each of them" in say(epoch_starts=3)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        "x",
        {},
        {**GOOD, "step_ns": math.nan},
        {**GOOD, "lines": "3"},
        {**GOOD, "lines": 0},
    ],
)
def test_what_is_no_description_is_none(stored: object) -> None:
    assert slow_lines({"slow_lines": stored}) is None
