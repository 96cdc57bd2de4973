"""The pooled estimate of several runs of a benchmark."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scripts import load

pooled = load("pooled")


def test_equal_runs_are_twice_as_certain_together_as_one_of_four() -> None:
    found = pooled.pool([pooled.Added(0.2, 0.1)] * 4)
    assert found.value == pytest.approx(0.2)
    assert found.half == pytest.approx(0.05)


def test_a_run_that_is_uncertain_counts_little() -> None:
    found = pooled.pool([pooled.Added(0.1, 0.01), pooled.Added(5.0, 10.0)])
    assert found.value == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize("between", [0.0, 0.2])
def test_the_interval_contains_the_truth_also_if_runs_differ(between: float) -> None:
    random, hits, count = np.random.default_rng(0), 0, 400
    for _ in range(count):
        errors = random.uniform(0.03, 0.1, 6)
        values = 1 + random.normal(0, between, 6) + random.normal(0, errors)
        runs = [pooled.Added(*pair) for pair in zip(values, 1.96 * errors, strict=True)]
        found = pooled.pool(runs)
        hits += abs(found.value - 1) <= found.half
    assert 0.85 * count <= hits <= 0.99 * count


def test_all_runs_and_their_mean_are_shown() -> None:
    row = {"over_bare_ms": 0.2, "low_ms": 0.1, "high_ms": 0.3}
    found = {"cases": {"tiny": {"bare": {"median_ms": 0.5}, "all": row}}}
    first = {"date": "2026-11-01", "found": found}
    assert list(pooled.pooled_section(pooled.all_runs(first, "all"), "all")) == []
    second = {**first, "date": "2026-11-02", "earlier": pooled.all_runs(first, "all")}
    _, table = pooled.pooled_section(pooled.all_runs(second, "all"), "all")
    assert "| tiny | 2026-11-01 | 0.5 ms | 0.200 ms | 0.100 ms to 0.300 ms |" in table
    assert "| tiny | **pooled, 2 runs** | - | 0.200 ms | 0.129 ms to 0.271 ms |" in table
