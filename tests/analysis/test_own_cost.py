"""The estimate of profkit's own cost agrees with planted costs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from profkit.frame.own_cost import OwnCost, own_cost, switched_cost
from profkit.instrument.blocks import LENGTH, WARM_UP, WINDOW, off_blocks
from profkit.vocab import (
    COLLECTORS_CPU,
    EYE,
    EYE_CPU,
    MARK_COST,
    PATCHED_THREADS,
    SPAN_COST,
    WRITER_CPU,
)


def _steps(
    count: int, cost_ns: float, *, noise: float = 0.02, drift: float = 0.0, seed: int = 0
) -> pa.Table:
    """Steps of 5 ms, `cost_ns` longer where profkit is on, over blocks as a run has them."""
    rng = np.random.default_rng(seed)
    measured = np.array([off_blocks()(step) for step in range(count)])
    duration = (
        5e6 * (1 + noise * rng.standard_normal(count) + drift * np.arange(count) / count)
        + cost_ns * measured
    )
    end = np.cumsum(duration.astype(np.int64))
    columns = {
        "rank": np.zeros(count, np.int32),
        "step": np.arange(count),
        "start_ns": np.concatenate([[0], end[:-1]]),
        "end_ns": end,
    }
    return pa.table({**columns, "instrumented": measured})


def test_a_planted_cost_lies_in_its_interval() -> None:
    hits = 0
    for seed in range(40):
        found = switched_cost(_steps(600, 100_000, seed=seed), 10)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 100_000 <= found.high
    assert hits >= 34


def test_a_run_that_gets_slower_has_no_cost_from_that() -> None:
    found = switched_cost(_steps(600, 0, noise=0.001, drift=1.0), 10)
    assert found is not None
    assert abs(found.value) < 20_000


def test_long_steps_among_short_ones_are_no_cost() -> None:
    """One step in three has a pause: a block is no likelier to meet one than its neighbours."""
    found = [
        switched_cost(_with_pauses(_steps(600, 0, seed=seed), every=3, pause_ns=15_000_000), 10)
        for seed in range(20)
    ]
    assert abs(np.mean([each.value for each in found if each is not None])) < 200_000


def test_a_job_with_regular_long_steps_is_not_told_that_profkit_costs_them() -> None:
    told, judged = 0, 0
    for count in (60, 80, 150, 340):
        for every in (2, 3, 5, 7, 10, 20):
            for first in range(0, every, max(1, every // 4)):
                steps = _with_pauses(_steps(count, 0, seed=first), every, 15_000_000, first)
                found = switched_cost(steps, WARM_UP)
                assert found is not None
                assert found.low is not None
                told += found.low > 100_000
                judged += 1
    assert told <= 0.04 * judged


def test_a_cost_in_a_short_run_is_found() -> None:
    found = [switched_cost(_steps(80, 200_000, seed=seed), WARM_UP) for seed in range(20)]
    assert all(each is not None and each.low is not None and each.low > 0 for each in found)


def _with_pauses(steps: pa.Table, every: int, pause_ns: int, first: int = 0) -> pa.Table:
    longer = np.cumsum(np.where((np.arange(steps.num_rows) - first) % every, 0, pause_ns))
    start, end = (
        steps["start_ns"].to_numpy() + np.concatenate([[0], longer[:-1]]),
        steps["end_ns"].to_numpy() + longer,
    )
    return steps.set_column(2, "start_ns", pa.array(start)).set_column(3, "end_ns", pa.array(end))


def test_too_few_blocks_give_no_estimate() -> None:
    assert switched_cost(_steps(WARM_UP + 2 * WINDOW, 100_000), 10) is None
    assert switched_cost(_steps(10, 100_000), 10) is None


def test_each_window_has_one_block_and_the_same_on_every_rank() -> None:
    measured = [off_blocks(3)(step) for step in range(WARM_UP + 10 * WINDOW)]
    assert all(measured[:WARM_UP])
    for window in range(10):
        part = measured[WARM_UP + window * WINDOW : WARM_UP + (window + 1) * WINDOW]
        assert part.count(False) == LENGTH
        first = part.index(False)
        assert not any(part[first : first + LENGTH])
    assert measured == [off_blocks(3)(step) for step in range(len(measured))]
    assert measured != [off_blocks(4)(step) for step in range(len(measured))]


@pytest.mark.parametrize(
    ("hooks", "step", "exceeds"),
    [
        (10_000.0, 1e6, False),
        (200_000.0, 1e6, True),
        (200_000.0, 50e6, False),
        (600_000.0, 50e6, True),
    ],
)
def test_the_budget_is_a_share_of_the_step_or_a_fixed_time(
    hooks: float, step: float, exceeds: bool
) -> None:
    assert OwnCost(hooks, 0.0, None).exceeds_budget(step) is exceeds


def test_marks_on_the_device_count_with_their_price() -> None:
    count = 10
    rows = {"rank": [0, 0], "source": ["profkit"] * 2, "metric": [SPAN_COST, MARK_COST]}
    samples = pa.table({**rows, "value": [1_000.0, 5_000.0]})
    steps = _steps(count, 0)
    cost = own_cost(steps, samples, 0, spans=2 * count, marks=2 * count)
    assert cost.hooks_ns == pytest.approx(2 * 1_000 + 2 * 5_000)
    assert own_cost(
        steps, samples.slice(0, 1), 0, spans=2 * count, marks=2 * count
    ).hooks_ns == pytest.approx(2 * 1_000)


def test_what_reads_stacks_from_outside_is_part_of_the_cost() -> None:
    rows = {"rank": [0, 0, 1], "source": [EYE] * 3, "metric": [EYE_CPU] * 3}
    cost = own_cost(
        _steps(10, 0), pa.table({**rows, "value": [10.0, 40.0, 60.0]}), 0, spans=0, marks=0
    )
    assert cost.eye_ns == cost.threads_ns == pytest.approx((40 + 60) / 10)


def test_the_cost_of_threads_that_are_greenlets_is_not_measured() -> None:
    metrics = [SPAN_COST, WRITER_CPU, COLLECTORS_CPU, PATCHED_THREADS]
    rows = {"rank": [0] * 4, "source": ["profkit"] * 4, "metric": metrics, "value": [1e9] * 4}
    cost = own_cost(_steps(600, 0), pa.table(rows), 0, spans=1, marks=0)
    assert (cost.total_ns, cost.collectors_ns, cost.opening_ns) == (None, None, None)
    assert cost.switched is not None
