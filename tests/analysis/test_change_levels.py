"""Levels of step times: uneven first steps and few new steps hide no change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from profkit.analysis.change_levels import EVEN_KNOWN, Levels, find_even
from profkit.analysis.change_points import find_shifts
from profkit.analysis.run_change import ChangeKind

SEEDS = 20

Floats = npt.NDArray[np.float64]


def _noise(seed: int, count: int, spread: float, correlation: float) -> Floats:
    random, noise, last = np.random.default_rng(seed), np.empty(count), 0.0
    for place in range(count):
        own = np.sqrt(1 - correlation**2) * random.standard_normal()
        noise[place] = last = correlation * last + spread * own
    return noise


def _shows(logs: Floats, at: int) -> bool:
    """Return true if the only change is next to a place."""
    places = Levels(20e6 * np.exp(logs)).bounds[1:-1]
    return len(places) == 1 and abs(places[0] - at) <= 5


@pytest.mark.parametrize("uneven", [35, 60, 75])
def test_uneven_first_steps_do_not_hide_a_change(uneven: int) -> None:
    """A job that warms up takes another time for each step, which is no noise of later ones."""
    found = 0
    for seed in range(SEEDS):
        logs = _noise(seed, 170, 0.04, 0.4)
        logs[:uneven] *= 5
        assert Levels(20e6 * np.exp(logs)).bounds[1:-1] == []
        logs[150:] += 0.25
        found += _shows(logs, 150)
    assert found >= 0.8 * SEEDS


def _two_kinds(seed: int) -> Floats:
    random = np.random.default_rng(seed)
    return 0.01 * random.standard_normal(200) + 0.1 * (random.random(200) < 0.3)


@pytest.mark.parametrize("at", [45, 60, 80, 100, 120, 200])
def test_neither_noise_nor_an_early_change_makes_first_steps_uneven(at: int) -> None:
    found = []
    for seed in range(SEEDS):
        for logs in (_noise(seed, 200, 0.03, 0.5), _two_kinds(seed)):
            logs[at:] += 0.3
            found.append(find_even(20e6 * np.exp(logs)))
    assert np.count_nonzero(found) <= 0.05 * len(found)


def test_slow_first_steps_are_no_level() -> None:
    logs = _noise(0, EVEN_KNOWN, 0.03, 0.3)
    logs[:30] += np.linspace(0.5, 0.2, 30)
    assert 25 <= find_even(20e6 * np.exp(logs)) <= 31
    assert find_even(20e6 * np.exp(logs[:40])) == 0, "too few to compare them with"
    assert find_even(np.full(EVEN_KNOWN, 20e6)) == 0
    assert find_even(np.empty(0)) == 0


@pytest.mark.parametrize("at", [41, 60, 90, 130])
def test_an_early_change_is_found_by_the_steps_after_it(at: int) -> None:
    found = alone = others = 0
    for seed in range(SEEDS):
        logs = _noise(seed, 500, 0.04, 0.7)
        others += len(Levels(20e6 * np.exp(logs)).bounds) - 2
        logs[at:] += 0.25
        alone += any(abs(shift.at - at) <= 5 for shift in find_shifts(20e6 * np.exp(logs)))
        found += _shows(logs, at)
    assert others <= 1
    assert found >= max(0.9 * SEEDS, alone)


def test_a_change_after_an_early_one_keeps_its_place() -> None:
    logs = _noise(3, 600, 0.04, 0.7)
    logs[45:] += 0.25
    logs[300:] += 0.2
    first, second = Levels(20e6 * np.exp(logs)).bounds[1:-1]
    assert abs(first - 45) <= 5
    assert abs(second - 300) <= 5


@pytest.mark.parametrize("slow", range(5, 40, 7))
def test_steps_of_a_warm_up_are_no_early_change(slow: int) -> None:
    for seed in range(5):
        logs = _noise(seed, 400, 0.03, 0.5)
        logs[:slow] += 0.3
        assert Levels(20e6 * np.exp(logs)).bounds[1:-1] == []


def test_a_change_that_was_just_seen_is_no_drift() -> None:
    """Its few steps are less than a block of a long run, whose median shows a part of them."""
    for seed in range(10):
        logs = _noise(seed, 1_000, 0.03, 0.0)
        logs[988:] += 0.2
        kinds = [place[0] for place in Levels(20e6 * np.exp(logs)).places()]
        assert kinds == [ChangeKind.STEP]


def _to_and_fro(seed: int, count: int) -> Floats:
    """Return two levels 30 % apart; one holds for 14 steps and the other for 7, in the mean."""
    random = np.random.default_rng(seed)
    is_slow, logs = False, 0.015 * random.standard_normal(count)
    for place in range(count):
        is_slow ^= random.random() < (1 / 7 if is_slow else 1 / 14)
        logs[place] += 0.26 * is_slow
    return logs


def test_a_job_that_goes_to_and_fro_between_two_levels_has_no_drift() -> None:
    kinds = []
    for seed in range(2 * SEEDS):
        levels = Levels(20e6 * np.exp(_to_and_fro(seed, 500)))
        kinds += [place[0] for place in levels.places()]
    assert ChangeKind.DRIFT not in kinds


@pytest.mark.parametrize("length", [12, 30])
@pytest.mark.parametrize("grows", [False, True])
def test_a_small_change_hides_no_burst_soon_after_it(length: int, grows: bool) -> None:
    """The machine is 4 % slower for a while, and in the first steps of that the data waits."""
    found = 0
    for seed in range(SEEDS):
        logs = _noise(seed, 240, 0.01, 0.3)
        logs[110:128] += 0.04
        if grows:
            logs[122:128] += 0.07
        logs[128 : 128 + length] += 0.6
        places = np.array(Levels(20e6 * np.exp(logs)).bounds[1:-1])
        found += all((np.abs(places - at) <= 6).any() for at in (128, 128 + length))
    assert found >= 0.9 * SEEDS


def test_a_burst_behind_a_small_change_hides_no_earlier_change() -> None:
    """The search for larger changes does not see the step of 8 % that the first one found."""
    found = 0
    for seed in range(SEEDS):
        logs = _noise(seed, 400, 0.01, 0.3)
        logs[100:] += 0.08
        logs[270:288] += 0.04
        logs[288:318] += 0.6
        places = np.array(Levels(20e6 * np.exp(logs)).bounds[1:-1])
        found += all((np.abs(places - at) <= 6).any() for at in (100, 288, 318))
    assert found >= 0.9 * SEEDS
