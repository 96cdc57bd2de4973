"""Samples between phases are weighed by the time of their place in the step, which is known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.stack_samples import read_samples, weigh_by_gap
from profkit.analysis.stacks import estimate_share

STEPS, LENGTH = 40, 100
MIDDLE, LAST = 0, 1
"""The stack between forward and backward, and the one after backward."""


def test_places_get_the_weight_of_their_time() -> None:
    gap = np.array([7] * 30 + [9] * 10 + [-1] * 5)
    weight, group = weigh_by_gap(np.ones(45), gap, {7: 500.0, 9: 500.0})
    assert weight[:30] == pytest.approx(np.full(30, 2 / 3))
    assert weight[30:40] == pytest.approx(np.full(10, 2.0))
    assert weight.sum() == pytest.approx(45)
    assert len({*group[:30]} | {*group[30:40]} | {*group[40:]}) == 3
    assert not group[40:].any()


def test_places_with_few_samples_are_weighed_together() -> None:
    """Alone, one sample would stand for as much as five others."""
    gap = np.array([1] * 50 + [2] * 9 + [3] * 4)
    weight, group = weigh_by_gap(np.ones(63), gap, {1: 50.0, 2: 2.0, 3: 22.0})
    assert len({*group[50:]}) == 1
    assert weight[50:] == pytest.approx(np.full(13, 63 * 24 / 74 / 13))


def test_few_samples_are_joined_with_the_next_place_until_they_are_enough() -> None:
    _, group = weigh_by_gap(
        np.ones(64), np.array([1] * 50 + [2] * 11 + [3] * 3), {1: 50.0, 2: 5.0, 3: 9.0}
    )
    assert len({*group[50:]}) == 1
    assert group[0] != group[50]


@pytest.mark.parametrize("times", [{1: 10.0}, {1: 10.0, 2: -3.0}, {}])
def test_without_a_time_for_each_place_weights_stay(times: dict[int, float]) -> None:
    gap = np.array([1] * 20 + [2] * 20)
    weight, group = weigh_by_gap(np.ones(40), gap, times)
    assert weight.tolist() == [1.0] * 40
    assert not group.any()


@pytest.mark.parametrize("gaps", [[], [5] * 20, [-1] * 20])
def test_one_place_needs_no_weights(gaps: list[int]) -> None:
    gap = np.array(gaps, dtype=np.int64)
    weight, group = weigh_by_gap(np.ones(len(gap)), gap, {5: 10.0})
    assert weight.tolist() == [1.0] * len(gap)
    assert len({*group}) <= 1


def test_samples_of_a_run_are_weighed_by_the_places_of_its_steps() -> None:
    """The places take 20 and 30 of a step; by chance, the first has twice as many samples."""
    number = np.arange(STEPS)
    steps = _table(step=number, start_ns=LENGTH * number, end_ns=LENGTH * (number + 1))
    spans = pa.concat_tables([_phase("forward", 0, 30), _phase("backward", 50, 70)])
    moments = np.sort(np.concatenate([LENGTH * number + 40, LENGTH * number[::2] + 80]))
    stack = np.where(moments % LENGTH == 40, MIDDLE, LAST)
    stacks = _table(
        time_ns=moments,
        late_ns=0 * moments,
        every_ns=0 * moments + 50,
        stack=stack,
        thread=pa.array(["MainThread"] * len(moments)),
    )
    frames = _table(
        id=[0, 1],
        parent=pa.array([None, None], pa.int64()),
        file=pa.array(["/x/train.py"] * 2),
        function=pa.array(["main"] * 2),
        line=[4, 5],
        origin=pa.array(["job"] * 2),
    )
    found = read_samples(stacks, frames, steps, spans, number)
    share = found.weight[found.leaf == MIDDLE].sum() / found.weight.sum()
    assert share == pytest.approx(20 / 50)


def _table(**columns: object) -> pa.Table:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(np.asarray(values))
        for name, values in columns.items()
    }
    count = len(next(iter(arrays.values())))
    return pa.table({"rank": pa.array([0] * count), **arrays})


def _phase(name: str, begin: int, end: int) -> pa.Table:
    number = np.arange(STEPS)
    return _table(
        step=number,
        phase=pa.array([name] * STEPS),
        name=pa.array([name] * STEPS),
        depth=pa.array([0] * STEPS, pa.int16()),
        thread=pa.array(["MainThread"] * STEPS),
        start_ns=LENGTH * number + begin,
        end_ns=LENGTH * number + end,
    )


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("share_there", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("count", [25, 150])
def test_the_interval_holds_the_truth_as_often_as_it_says(
    part: float, share_there: float, count: int
) -> None:
    """A line takes a share of one place, which takes a part of the time between phases."""
    rng = np.random.default_rng(11)
    truth = part * share_there
    held, errors, plain_errors = 0, [], []
    for _ in range(600):
        gap = np.where(rng.random(count) < part, 1, 2)
        hits = (gap == 1) & (rng.random(count) < share_there)
        weight, group = weigh_by_gap(np.ones(count), gap, {1: part, 2: 1 - part})
        found, _ = estimate_share(hits, weight, np.arange(count) // 2, group)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
        errors.append(found.value - truth)
        plain_errors.append(hits.mean() - truth)
    assert held / 600 >= 0.92
    assert np.std(errors) <= 1.02 * np.std(plain_errors)


def test_a_line_that_is_a_place_has_the_time_of_the_place() -> None:
    gap = np.array([1] * 40 + [2] * 60)
    weight, group = weigh_by_gap(np.ones(100), gap, {1: 10.0, 2: 30.0})
    found, independent = estimate_share(gap == 1, weight, np.arange(100), group)
    plain, _ = estimate_share(gap == 1, np.ones(100), np.arange(100))
    assert found.value == pytest.approx(0.25)
    assert plain.value == 0.4
    assert independent > 100
