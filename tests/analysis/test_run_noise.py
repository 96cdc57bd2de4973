"""Intervals between repeats are simulated: how often they are right, and what they find."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.run_noise import (
    Rounds,
    difference,
    estimate_repeats,
    estimate_within,
    find_rounds,
    keep_possible,
    repeats_to_tell,
    widen_difference,
)
from profkit.explain.explained import explain_repeats
from profkit.explain.ledger import Verdict, judge
from profkit.frame.estimate import Estimate, Floats, divide, subtract
from profkit.frame.student import student_of_few
from profkit.testing import synthetic_trace
from profkit.trace import Trace

MS, SECOND_NS = 1_000_000, 1_000_000_000
TRIALS = 4_000
"""Simulated comparisons, which give a rate of 5 % within 0.7 %."""

AT_MOST = 0.06
"""5 %, and the error of the rate."""


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (1.5, 6.25), (2, 4.303), (2.5, 3.57), (3, 3.182), (9, 2.262)],
)
def test_students_quantile_for_few_and_broken_degrees_of_freedom(
    freedom: float, quantile: float
) -> None:
    assert student_of_few(freedom) == pytest.approx(quantile, rel=0.05)


@pytest.mark.parametrize(
    ("freedom", "level", "quantile"),
    [(1, 0.9, 6.314), (2, 0.98, 6.965), (2, 0.99, 9.925), (4, 0.98, 3.747), (4, 0.9, 2.132)],
)
def test_students_quantile_at_other_levels(freedom: float, level: float, quantile: float) -> None:
    assert student_of_few(freedom, level) == pytest.approx(quantile, rel=0.005)


Noise = Callable[[np.random.Generator, int], Floats]
"""Returns the factors by which runs are slower, of one side after the other."""


def _alone(noise: Callable[[np.random.Generator, int], Floats]) -> Noise:
    """Return noise that meets each run for itself."""
    return lambda rng, runs: np.stack([noise(rng, runs), noise(rng, runs)])


def _normal(spread: float, shared: float = 0.0) -> Noise:
    """Return normal noise, of whose variance a share is common to the runs of a round."""

    def draw(rng: np.random.Generator, runs: int) -> Floats:
        common = np.sqrt(shared) * rng.standard_normal(runs)
        own = np.sqrt(1 - shared) * rng.standard_normal((2, runs))
        return np.asarray(1 + spread * (common + own))

    return draw


def _contended(rng: np.random.Generator, runs: int) -> Floats:
    return np.asarray(1 + rng.gamma(2.0, 0.2, runs))


def _suddenly(rng: np.random.Generator, runs: int) -> Floats:
    """A third of the runs meet something that takes half of their time again."""
    return np.asarray((1 + 0.02 * rng.standard_normal(runs)) * (1 + 0.5 * (rng.random(runs) < 0.3)))


def _called(change: float, runs: tuple[int, int], noise: Noise, *, in_turn: bool = False) -> float:
    """The share of comparisons of simulated run means that are called a change."""
    rng = np.random.default_rng(1)
    places = np.arange(runs[0])
    rounds = Rounds(places, places) if in_turn else None
    called = 0
    for _ in range(TRIALS):
        both = noise(rng, max(runs))
        base, target = both[0, : runs[0]], both[1, : runs[1]] * (1 + change)
        value = float(target.mean() - base.mean())
        found = widen_difference(
            Estimate(value, value, value),
            base,
            target,
            base_value=float(base.mean()),
            rounds=rounds,
        )
        called += judge(found, float(base.mean())) in {Verdict.REGRESSION, Verdict.IMPROVEMENT}
    return called / TRIALS


@pytest.mark.parametrize("noise", [_normal(0.03), _alone(_contended), _alone(_suddenly)])
@pytest.mark.parametrize("runs", [(3, 3), (4, 4), (3, 5)])
def test_repeats_of_one_job_are_rarely_called_a_change(noise: Noise, runs: tuple[int, int]) -> None:
    assert _called(0.0, runs, noise) <= AT_MOST


@pytest.mark.parametrize("shared", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("runs", [3, 6])
def test_rounds_of_one_job_are_rarely_called_a_change(runs: int, shared: float) -> None:
    assert _called(0.0, (runs, runs), _normal(0.03, shared), in_turn=True) <= AT_MOST


@pytest.mark.parametrize("noise", [_alone(_contended), _alone(_suddenly)])
def test_rounds_on_a_busy_host_are_rarely_called_a_change(noise: Noise) -> None:
    assert _called(0.0, (3, 3), noise, in_turn=True) <= AT_MOST


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_three_rounds_find_ten_percent(spread: float, shared: float) -> None:
    assert _called(0.10, (3, 3), _normal(spread, shared), in_turn=True) >= 0.79


def test_rounds_find_more_where_they_share_the_noise() -> None:
    """Where runs differ by 5 %, three rounds are not enough, unless the noise is shared."""
    noise = _normal(0.05, 0.9)
    together, apart = (_called(0.10, (3, 3), noise, in_turn=each) for each in (True, False))
    assert together > apart + 0.1
    assert _called(0.10, (5, 5), noise, in_turn=True) >= 0.95
    assert _called(0.10, (6, 6), _normal(0.05), in_turn=True) >= 0.80


@pytest.mark.parametrize(("spread", "wanted"), [(0.02, 3), (0.05, 5), (0.1, 17), (0.5, 30)])
def test_as_many_repeats_are_asked_for_as_find_the_change(spread: float, wanted: int) -> None:
    """Three runs per side do not show a change of 10 %; so many find it in 80 % of comparisons."""
    half = student_of_few(4) * spread * (2 / 3) ** 0.5
    asked = repeats_to_tell(Estimate(0.1, 0.1 - half, 0.1 + half), 3)
    assert asked == pytest.approx(max(4, wanted), abs=1)
    assert asked is not None
    if spread < 0.5:
        assert _called(0.10, (asked, asked), _normal(spread)) >= 0.75


def test_the_only_run_of_a_side_is_as_noisy_as_the_repeats_of_the_other() -> None:
    assert _called(0.0, (4, 1), _normal(0.03)) <= AT_MOST
    assert _called(0.25, (4, 1), _normal(0.03)) >= 0.80


def test_without_repeats_the_interval_stays_as_it_is() -> None:
    delta = Estimate(1.0, 0.9, 1.1)
    alone = np.array([1.0]), np.array([2.0])
    assert widen_difference(delta, *alone, base_value=1.0) is delta


def test_rounds_are_found_by_the_order_in_time() -> None:
    found = find_rounds([30, 10, 51], [40, 20, 50])
    assert found is not None
    assert [found.base.tolist(), found.target.tolist()] == [[1, 0, 2], [1, 0, 2]]
    for base, target in (
        ([10, 20, 30], [40, 50, 60]),
        ([10, 20, 50], [30, 40, 60]),
        ([10, 30], [20, 40]),
        ([10, 30, 50], [20, 40, 60, 70]),
        ([10, 10, 10], [10, 10, 10]),
        ([], []),
    ):
        assert find_rounds(base, target) is None


def _trace(folder: Path, speed: float, began_s: int, seed: int) -> Trace:
    phases = {"backward": round(24 * MS * speed), "forward": round(12 * MS * speed)}
    path = synthetic_trace(folder, steps=80, seed=seed, jitter=0.01, phase_ns=phases)
    trace = Trace.open(path)
    created_ns = trace.manifest.created_ns + began_s * SECOND_NS
    dataclasses.replace(trace.manifest, created_ns=created_ns).write(path)
    return Trace.open(path)


def test_a_drift_of_the_machine_hides_no_change_from_runs_that_took_turns(tmp_path: Path) -> None:
    """The same runs show nothing if each side ran for itself."""
    for name, times, verdict in (
        ("turns", ((0, 2, 4), (1, 3, 5)), Verdict.REGRESSION),
        ("apart", ((0, 1, 2), (3, 4, 5)), Verdict.CANNOT_JUDGE),
    ):
        sides = []
        for side, change in enumerate((1.0, 1.06)):
            sides.append(
                [
                    _trace(
                        tmp_path / f"{name}{side}{place}",
                        change * drift,
                        times[side][place],
                        10 * side + place,
                    )
                    for place, drift in enumerate((1.0, 1.12, 1.2))
                ]
            )
        bases, targets = sides
        assert explain_repeats(bases, targets).ledger.verdict is verdict


def test_repeats_that_differ_are_no_drift_of_one_run() -> None:
    rng = np.random.default_rng(2)
    repeats, ones = (150, 150, 150), np.ones((1, 450))
    steps = np.repeat([0.9, 1.0, 1.1], 150) * (1 + 0.05 * rng.standard_normal(450))
    (moved,) = estimate_within(steps[None], ones, repeats)
    assert moved.high is not None
    assert moved.high - moved.value < 0.007
    (both,) = estimate_repeats(steps[None], ones, repeats)
    assert both.value == moved.value == pytest.approx(steps.mean())
    assert both.high is not None
    assert both.high - both.value > 0.2


SIDES = [*itertools.product((2, 3, 5), (2, 3, 5)), (1, 3), (3, 1)]


@pytest.mark.parametrize("runs", SIDES)
@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_no_interval_of_repeats_leaves_what_is_possible(
    runs: tuple[int, int], spread: float
) -> None:
    """It is not cut off there: it holds the truth as often as it should."""
    rng = np.random.default_rng(4)
    held = beyond = 0
    for _ in range(TRIALS // 4):
        base = rng.lognormal(0.0, spread, runs[0])
        target = 0.3 * rng.lognormal(0.0, spread, runs[1])
        value = float(target.mean() - base.mean())
        found = widen_difference(
            Estimate(value, value, value), base, target, base_value=float(base.mean())
        )
        assert found.low is not None
        assert found.high is not None
        beyond += found.low < -base.mean()
        held += found.low <= -0.7 * base.mean() <= found.high
        possible = keep_possible(found, float(base.mean()))
        assert possible.low is not None
        assert possible.low >= -base.mean()
    assert held / (TRIALS // 4) >= 0.93
    assert beyond / (TRIALS // 4) <= 0.01


@pytest.mark.parametrize("runs", [2, 3])
def test_what_is_nothing_in_some_repeats_loses_at_most_all(runs: int) -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(TRIALS // 4):
        base, target = (rng.gamma(0.7, 1 / 0.7, runs) * (rng.random(runs) < 0.8) for _ in "ab")
        value = float(target.mean() - base.mean())
        found = widen_difference(
            Estimate(value, value, value), base, target, base_value=float(base.mean())
        )
        assert found.low is not None
        assert found.high is not None
        spread = np.sqrt((base.var(ddof=1) + target.var(ddof=1)) / runs)
        half = student_of_few(2 * runs - 2) * spread
        assert found.low >= -base.mean() - half - 1e-9
        held += found.low <= 0.0 <= found.high
    assert held / (TRIALS // 4) >= 0.93


def test_a_difference_of_two_figures_loses_at_most_all() -> None:
    base, target = Estimate(10.0, 4.0, 25.0), Estimate(1.0, 0.5, 2.0)
    found, share = difference(base, target), divide(target, base)
    assert found.low is not None
    assert share.low is not None
    assert found.value == -9.0
    assert -10.0 < found.low == pytest.approx(10 * (share.low - 1))
    narrow = Estimate(10.0, 9.0, 11.0), Estimate(12.0, 11.0, 13.0)
    assert difference(*narrow) == subtract(narrow[1], narrow[0])
