"""The estimate of the cost of threads next to a loop, on steps for which it is known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scripts import load

beside = load("beside")

EVERY = 25
PLANTED_MS = 3.0


def _blocks(planted_ms: float) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Blocks of drifting 20 ms steps, some of them with 3 ms of another thread's work."""
    random = np.random.default_rng(0)
    now, number = 0, 0
    blocks: list[list[int]] = []
    events: list[tuple[int, int]] = []
    for _ in range(8):
        blocks.append([])
        for _ in range(100):
            number += 1
            took = 20 + random.normal() + 2 * np.sin(number / 200)
            if number % EVERY == 0:
                events.append((now + 5_000_000, now + 8_000_000))
                took += planted_ms
            now += int(took * 1e6)
            blocks[-1].append(now)
        now += 50_000_000
    return blocks, events


@pytest.mark.parametrize("planted_ms", [0.0, PLANTED_MS])
def test_what_was_planted_is_found(planted_ms: float) -> None:
    found = beside.added(*_blocks(planted_ms))
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
