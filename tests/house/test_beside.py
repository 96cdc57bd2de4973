"""The estimate of the cost of threads next to a loop, on steps for which it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.scripts import load

beside = load("beside")

EVERY = 25
PLANTED_MS = 3.0


def _turns(planted_ms: float) -> list[Any]:
    """Blocks of drifting 20 ms steps, some of them with 3 ms of another thread's work."""
    random = np.random.default_rng(0)
    now, number = 0, 0
    turns = []
    for _ in range(16):
        events: list[tuple[int, int]] = []
        blocks: tuple[list[int], list[int]] = [], []
        for block, work_ms in zip(blocks, (planted_ms, 0.0), strict=True):
            for _ in range(100):
                number += 1
                took = 20 + random.normal() + 2 * np.sin(number / 200)
                if number % EVERY == 0 and block is blocks[0]:
                    events.append((now + 5_000_000, now + 8_000_000))
                    took += work_ms
                now += int(took * 1e6)
                block.append(now)
            now += 50_000_000
        turns.append(beside.Turn(*blocks, events))
    return turns


@pytest.mark.parametrize("planted_ms", [0.0, PLANTED_MS])
def test_what_was_planted_is_found(planted_ms: float) -> None:
    found = beside.added(_turns(planted_ms))
    assert found.mean_ms == pytest.approx(planted_ms / EVERY, abs=found.half_ms)
    assert found.half_ms < PLANTED_MS / EVERY / 4


def test_processes_that_differ_widen_the_interval() -> None:
    alike, apart = (
        beside.pool([beside.Added(mean, 0.01) for mean in means])
        for means in ((0.1, 0.1, 0.1), (0.0, 0.1, 0.2))
    )
    assert alike.mean_ms == apart.mean_ms == pytest.approx(0.1)
    assert alike.half_ms < 0.01
    assert apart.half_ms > 0.1


STEP_MS, NOISE_MS = 31.0, 3.0
"""With this noise, the comparison alone finds 0.3 ms per step although samples take nothing."""

TURNS, STEPS = 40, 100
SAMPLES_PER_S = 20


@pytest.mark.parametrize("sample_ms", [0.0, 1.0])
def test_long_steps_contain_more_work_and_that_is_no_cost(sample_ms: float) -> None:
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


def test_what_a_thread_waits_for_is_no_work() -> None:
    events = [(100, 160), (200, 210), (300, 390)]
    waits = [(110, 150), (310, 320), (395, 400)]
    parts = [(100, 110), (150, 160), (200, 210), (300, 310), (320, 390)]
    assert beside.leave_out(events, waits) == parts
