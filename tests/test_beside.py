"""What threads add to the steps beside them, where it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import scripts

STEP_MS, NOISE_MS = 31.0, 3.0
"""With this noise, steps with a sample were found 0.4 ms longer although samples took nothing."""

TURNS, STEPS = 40, 100
SAMPLES_PER_S = 20


@pytest.mark.parametrize("sample_ms", [0.0, 1.0])
def test_long_steps_contain_more_work_and_that_is_no_cost(sample_ms: float) -> None:
    beside: Any = scripts.load("beside")
    random = np.random.default_rng(1)

    def train(events: list[tuple[int, int]]) -> list[int]:
        ends = [0]
        for _ in range(STEPS):
            took = round(1e6 * random.normal(STEP_MS, NOISE_MS))
            inside = sum(ends[-1] <= start < ends[-1] + took for start, _ in events)
            ends.append(ends[-1] + took + round(1e6 * sample_ms * inside))
        return ends

    turns = []
    for _ in range(TURNS):
        gaps = random.uniform(25, 75, 2 * STEPS)
        events = [(start, start) for start in (1e6 * np.cumsum(gaps)).astype(int).tolist()]
        turns.append(beside.Turn(train(events), train([]), events))
    found = beside.added(turns)
    true_ms = sample_ms * SAMPLES_PER_S * STEP_MS / 1_000
    assert found.half_ms < 0.3
    assert found.mean_ms == pytest.approx(true_ms, abs=found.half_ms)
