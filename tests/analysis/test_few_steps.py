"""The exact test of few steps counts orders rightly, and its intervals hold the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from profkit.explain.ledger import choose_order, exact_difference


@pytest.mark.parametrize("base", range(1, 6))
@pytest.mark.parametrize("target", range(1, 6))
def test_the_risk_is_that_of_counting_all_orders(base: int, target: int) -> None:
    skipped, risk = choose_order(base, target)
    orders = misses = 0
    for chosen in itertools.combinations(range(base + target), base):
        others = [place for place in range(base + target) if place not in chosen]
        first = sum(other < own for own in chosen for other in others)
        orders += 1
        misses += first <= skipped or first >= base * target - skipped
    assert risk == pytest.approx(min(2.0, misses / orders), abs=1e-12) or base * target == 1


@pytest.mark.parametrize(("base", "target"), [(3, 3), (3, 6), (5, 5), (7, 30)])
def test_the_interval_holds_the_shift_as_often_as_it_says(base: int, target: int) -> None:
    chance = np.random.default_rng(base * 100 + target)
    hits, level = 0, 0.0
    for _ in range(2_000):
        left, right = chance.exponential(size=base), chance.exponential(size=target) + 0.5
        found = exact_difference(left, right, float(right.mean() - left.mean()))
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.5 <= found.high
        level = found.level
    assert hits / 2_000 >= level - 0.015


@pytest.mark.parametrize(("base", "target"), [(1, 1), (2, 2), (1, 50), (2, 30), (0, 9)])
def test_fewer_than_three_steps_give_no_interval(base: int, target: int) -> None:
    found = exact_difference(np.ones(base), np.full(target, 2.0), 1.0)
    assert (found.low, found.high) == (None, None)


def test_the_same_steps_differ_by_nothing() -> None:
    """Copies of one trace are the same measurement, however much its steps vary."""
    steps = np.array([10.0, 11.0, 45.0])
    found = exact_difference(steps, steps[::-1].copy(), 0.0)
    assert (found.low, found.high) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_an_interval_does_not_end_at_its_own_estimate(seed: int) -> None:
    """A few long steps of the target move the mean beyond all that ranks say of the shift."""
    chance = np.random.default_rng(seed)
    base, target = chance.normal(200, 2, size=7), chance.normal(240, 5, size=400)
    target[::10] += 115
    value = float(target.mean() - base.mean())
    found = exact_difference(base, target, value)
    assert found.low is not None
    assert found.high is not None
    assert found.low < value - 0.5
    assert found.high > value + 0.5
    turned = exact_difference(-base, -target, -value)
    assert turned.low is not None
    assert turned.low == pytest.approx(-found.high)
