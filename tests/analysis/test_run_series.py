"""Changes in series of runs: found if they are there, and hardly ever if not."""

from __future__ import annotations

import numpy as np
import pytest

from profkit.analysis.run_series import FEWEST_RUNS, compare_newest, find_course
from tests.scripts import load

history = load("history")

HISTORIES = 150


def _share(noise: str, step: float) -> float:
    hits = [history.judge_one(noise, step, 10_000 + seed)[0] for seed in range(HISTORIES)]
    return float(sum(hits)) / HISTORIES


def test_the_power_and_the_false_alarms_of_normal_noise() -> None:
    """More than 3 of 150 are more than 1 % beyond doubt; docs/results.md has more histories."""
    assert _share("normal", 0.0) <= 0.02
    assert _share("normal", 0.03) >= 0.9


def test_the_power_for_a_change_that_was_undone() -> None:
    """No single step of such a series is larger than noise makes."""
    hits = [history.judge_undone("normal", 0.03, 10_000 + seed)[0] for seed in range(40)]
    assert sum(hits) / len(hits) >= 0.75
    values = 100 * np.exp(np.random.default_rng(1).normal(0, 0.01, 40))
    values[15:25] *= 1.03
    found = find_course(values.tolist())
    assert len(found.changes) == 2
    slower, faster = found.changes
    assert abs(slower.at - 15) <= 2
    assert abs(faster.at - 25) <= 2
    assert slower.share.value > 0.015
    assert faster.share.value < -0.015
    assert found.since == faster.at


@pytest.mark.parametrize(
    ("noise", "most"), [("outliers of 10 %", 0.03), ("drifting (autocorrelation 0.3)", 0.05)]
)
def test_false_alarms_of_worse_noise(noise: str, most: float) -> None:
    """Without allowing for it, drift would make 8 % of all reports wrong."""
    assert _share(noise, 0.0) <= most


def test_disturbed_runs_hide_few_changes() -> None:
    """Every twentieth run took 10 % longer, which hid one of five changes of 3 %."""
    assert _share("outliers of 10 %", 0.03) >= 0.87


def test_far_runs_hide_no_change_that_the_others_show() -> None:
    """Four far runs of 30: in some permutations, they stand together at an end."""
    values = np.exp(np.random.default_rng(9).normal(0, 0.01, 30))
    values[21:] *= 1.03
    values[[2, 8, 14, 26]] *= 1.1
    (change,) = find_course(values.tolist()).changes
    assert change.at == 21
    assert change.share.value == pytest.approx(0.03, abs=0.01)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_runs_of_two_kinds_are_no_change(share: float) -> None:
    """Moving the rarer kind in their order, before any permutation, would make some of them one."""
    random, alarms = np.random.default_rng(13), 0
    for _ in range(100):
        values = np.exp(random.normal(0, 0.01, 30) + 0.1 * (random.random(30) < share))
        alarms += bool(find_course(values.tolist()).changes)
    assert alarms <= 3


@pytest.mark.parametrize("size", [1.06, 1.15])
def test_three_slow_runs_at_the_end_are_a_change(size: float) -> None:
    """They are no single ones, which are moved towards their neighbours."""
    values = np.exp(np.random.default_rng(27).normal(0, 0.01, 30))
    values[27:] *= size
    assert [change.at for change in find_course(values.tolist()).changes] == [27]


def test_two_changes_are_both_found_with_their_sizes() -> None:
    values = np.full(40, 100.0)
    values[15:] *= 1.05
    values[28:] *= 0.92
    values *= np.exp(np.random.default_rng(3).normal(0, 0.005, 40))
    found = find_course(values.tolist())
    assert [change.at for change in found.changes] == [15, 28]
    for change, size in zip(found.changes, (0.05, -0.08), strict=True):
        assert change.share.low is not None
        assert change.share.high is not None
        assert change.share.low < size < change.share.high
    assert found.since == 28


def test_equal_runs_have_no_change() -> None:
    assert find_course([5.0] * 20).changes == ()


def test_too_few_runs_are_inconclusive() -> None:
    found = find_course([1.0, 1.0, 2.0, 2.0])
    assert found.changes == ()
    assert found.why_not.startswith(f"needs {FEWEST_RUNS - 4} more runs")


def test_one_disturbed_run_is_no_change() -> None:
    values = (100 * np.exp(np.random.default_rng(5).normal(0, 0.01, 25))).tolist()
    values[12] *= 1.5
    assert find_course(values).changes == ()


def test_the_prediction_interval_holds_the_next_run() -> None:
    """It has to in 95 % of series; without the noise between runs it would in far fewer."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        found = compare_newest((100 * np.exp(random.normal(0, 0.02, 9))).tolist())
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 0.92 <= held / 400 <= 0.99


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("runs", [8, 20, 50])
def test_a_run_of_the_rarer_kind_is_seldom_surely_slower(share: float, runs: int) -> None:
    """A third of the runs are not disturbed: such runs made up to 27 % of the gates fail."""
    random, surely = np.random.default_rng(11), 0
    for _ in range(300):
        slow = 0.1 * (random.random(runs) < share)
        found = compare_newest(np.exp(slow + random.normal(0, 0.005, runs)).tolist())
        assert found is not None
        assert found.low is not None
        surely += found.low > 0
    assert surely / 300 <= 0.1


def test_one_disturbed_run_of_many_hides_no_slower_one() -> None:
    values = np.exp(np.random.default_rng(5).normal(0, 0.01, 26))
    values[12] *= 1.3
    values[-1] = 1.06
    found = compare_newest(values.tolist())
    assert found is not None
    assert found.low is not None
    assert found.low > 0


def test_the_newest_of_too_few_runs_is_not_compared() -> None:
    assert compare_newest([1.0, 1.1, 1.0, 1.0]) is None


def test_equal_runs_say_nothing_about_the_noise() -> None:
    """Times of a log are often rounded: an interval without width would be sure of anything."""
    assert compare_newest([0.31] * 6 + [0.32]) is None


def test_a_step_between_equal_runs_is_found() -> None:
    (change,) = find_course([0.31] * 10 + [0.32] * 10).changes
    assert change.at == 10
    assert change.share.value == pytest.approx(0.32 / 0.31 - 1)


def test_rounded_times_are_no_change() -> None:
    found = 0
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(0, 0.006, 30)
        found += bool(find_course((1 + np.rint(noise / 0.02) * 0.02).tolist()).changes)
    assert found <= 3
