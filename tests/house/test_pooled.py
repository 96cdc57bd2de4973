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


def test_runs_of_replaced_code_are_pooled_on_their_own() -> None:
    runs = [
        {"date": f"day {day}", "cases": {"tiny": {"bare_ms": 0.5, **_row(value)}}}
        for day, value in enumerate([0.4, 0.4, 0.1, 0.1, 0.1])
    ]
    said, table = pooled.pooled_section(runs, "all", 2, "hooks that did more")
    assert said.endswith("Runs *before* measured hooks that did more.")
    assert [line.split(" | ")[1:4:2] for line in table.splitlines()[2:]] == [
        ["day 0 before", "0.400 ms"],
        ["day 1 before", "0.400 ms"],
        ["**pooled, 2 runs before**", "0.400 ms"],
        ["day 2", "0.100 ms"],
        ["day 3", "0.100 ms"],
        ["day 4", "0.100 ms"],
        ["**pooled, 3 runs**", "0.100 ms"],
    ]


def _row(value: float) -> dict[str, float]:
    return {"over_bare_ms": value, "low_ms": value - 0.1, "high_ms": value + 0.1}
