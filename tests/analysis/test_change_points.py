"""Changes of a run's step time: planted ones are found where they are, and noise is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from profkit.analysis.change_levels import Levels, find_drift_alone, find_settled
from profkit.analysis.change_points import find_shifts
from profkit.analysis.change_words import say_change
from profkit.analysis.overview import build_overview
from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.analysis.run_changes import Periodic, find_changes, find_periodic
from profkit.frame.estimate import Estimate
from profkit.testing.series import series_trace
from profkit.trace import Trace

MS = 1_000_000
STEPS, AT, WARM_UP = 600, 300, 10

Floats = npt.NDArray[np.float64]


def _noise(kind: str, seed: int, count: int = STEPS) -> Floats:
    """Return the logarithm of step times: autocorrelated, heavy-tailed, or with two modes."""
    random = np.random.default_rng(seed)
    if kind == "autocorrelated":
        innovations = 0.026 * random.standard_t(4, count) / np.sqrt(2)
        noise = np.empty(count)
        last = 0.0
        for place, each in enumerate(innovations):
            last = noise[place] = 0.5 * last + each
        return noise
    if kind == "heavy":
        slow = random.random(count) < 0.05
        return 0.02 * random.standard_normal(count) + slow * random.exponential(0.5, count)
    return 0.01 * random.standard_normal(count) + 0.1 * (random.random(count) < 0.3)


NOISES = ("autocorrelated", "heavy", "two modes")


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_change(kind: str, seed: int) -> None:
    assert find_shifts(80 * MS * np.exp(_noise(kind, seed, 5_000))) == []


def test_equal_steps_and_few_steps_are_no_change() -> None:
    assert find_shifts(np.full(1_000, 80.0 * MS)) == []
    assert find_shifts(np.full(3, 80.0 * MS)) == []
    assert find_shifts(np.empty(0)) == []


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("rise", [0.3, -0.3])
def test_a_shift_is_found_soon_and_where_it_is(kind: str, rise: float) -> None:
    delays = []
    for seed in range(5):
        logs = _noise(kind, seed)
        logs[AT:] += rise
        shifts = find_shifts(80 * MS * np.exp(logs))
        assert [abs(shift.at - AT) <= 5 for shift in shifts] == [True], (seed, shifts)
        assert shifts[0].rise * rise > 0
        delays.append(shifts[0].seen - AT)
    assert float(np.median(delays)) <= 20


def test_what_was_seen_so_far_stays_when_a_run_grows() -> None:
    logs = _noise("heavy", 7)
    logs[AT:] += 0.2
    whole = find_shifts(80 * MS * np.exp(logs))
    early = find_shifts(80 * MS * np.exp(logs[: whole[0].seen + 1]))
    assert [(shift.at, shift.seen) for shift in early] == [(whole[0].at, whole[0].seen)]


def _changes(folder: Path, forward: Floats) -> tuple[RunChange, ...]:
    """Return the changes of a run whose forward takes 50 ms times these factors."""
    phases = {"data": np.full(len(forward), 5.0 * MS), "forward": 50 * MS * forward}
    phases["backward"] = np.full(len(forward), 25.0 * MS)
    return build_overview(Trace.open(series_trace(folder / "run", phases))).changes


def test_a_step_names_its_phase_and_its_size(tmp_path: Path) -> None:
    forward = np.exp(_noise("autocorrelated", 1))
    forward[AT:] *= 1.4
    (change,) = _changes(tmp_path, forward)
    assert change.kind is ChangeKind.STEP
    assert abs(change.first_step - AT) <= 2
    assert change.last_step is None
    assert change.change.low is not None
    assert change.change.high is not None
    assert change.change.low < 20 / 80 < change.change.high
    assert [name for name, _ in change.phases] == ["forward"]
    assert change.phases[0][1] == pytest.approx(20 * MS, rel=0.1)
    assert change.unix_ns is not None


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.091, 0.129, "(9 to 13)"), (0.002, 0.043, "(0.2 to 4.3)"), (0.101, 0.112, "(10.1 to 11.2)")],
)
def test_an_interval_is_rounded_but_not_to_zero(low: float, high: float, words: str) -> None:
    change = Estimate((low + high) / 2, low, high)
    step = RunChange(ChangeKind.STEP, 10, None, None, change, change, change, ())
    assert words in say_change(step)
    assert words in say_change(replace(step, change=Estimate(-change.value, -high, -low)))


def test_a_burst_ends(tmp_path: Path) -> None:
    forward = np.exp(_noise("two modes", 2))
    forward[AT : AT + 40] *= 1.6
    (change,) = _changes(tmp_path, forward)
    assert change.kind is ChangeKind.BURST
    assert abs(change.first_step - AT) <= 2
    assert change.last_step is not None
    assert abs(change.last_step - (AT + 39)) <= 2


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("steps", [10, 15, 20])
def test_a_short_burst_ends_too(tmp_path: Path, kind: str, steps: int) -> None:
    """What seems changed while the job runs is not missing once it has run."""
    forward = np.exp(_noise(kind, 2))
    forward[AT : AT + steps] *= 2.0
    (change,) = _changes(tmp_path, forward)
    assert change.kind is ChangeKind.BURST
    assert abs(change.first_step - AT) <= 2
    assert change.last_step is not None
    assert abs(change.last_step - (AT + steps - 1)) <= 2


def test_a_slow_beginning_is_no_part_of_the_level_before_a_change(tmp_path: Path) -> None:
    forward = np.exp(_noise("autocorrelated", 1))
    forward[: WARM_UP + 25] *= 2.0
    forward[AT:] *= 1.2
    (change,) = _changes(tmp_path, forward)
    assert abs(change.before_steps[0] - (WARM_UP + 25)) <= 2
    assert change.change.value == pytest.approx(0.2 * 50 / 80, rel=0.1)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("later", [1.0, 1.15])
def test_what_stays_after_a_burst_is_a_change_of_its_own(
    tmp_path: Path, kind: str, later: float
) -> None:
    forward = np.exp(_noise(kind, 2))
    forward[AT : AT + 40] *= 2.0
    forward[AT + 40 :] *= later
    burst, *others = _changes(tmp_path, forward)
    assert burst.kind is ChangeKind.BURST
    if later == 1.0:
        assert others == []
        return
    (rest,) = others
    assert (rest.kind, rest.last_step) == (ChangeKind.STEP, None)
    assert abs(rest.first_step - (AT + 40)) <= 2
    assert rest.first_step == (burst.last_step or 0) + 1
    assert rest.before_steps == burst.before_steps
    assert rest.change.value == pytest.approx((later - 1) * 50 / 80, rel=0.25)


def test_a_drift_is_no_step(tmp_path: Path) -> None:
    forward = np.exp(_noise("autocorrelated", 3))
    forward[AT:] *= np.linspace(1, 1.6, STEPS - AT)
    (change,) = _changes(tmp_path, forward)
    assert change.kind is ChangeKind.DRIFT
    assert abs(change.first_step - AT) <= STEPS // 10
    assert change.change.value == pytest.approx(0.6 * 50 / 80, rel=0.2)


def test_a_large_change_is_found_in_a_job_whose_speed_moves_by_itself() -> None:
    """What is learned from the past must not hold the first steps after the change."""
    found = 0
    for seed in range(20):
        random, logs = np.random.default_rng(seed), np.empty(220)
        last = 0.086 * random.standard_normal()
        for place in range(220):
            last = logs[place] = 0.8 * last + 0.052 * random.standard_normal()
        logs[85:] += 0.38
        found += any(abs(shift.at - 85) <= 15 for shift in find_shifts(20 * MS * np.exp(logs)))
    assert found >= 11


def test_a_plain_change_is_found_whatever_the_noise() -> None:
    """No part of the past comes near the steps after it."""
    found = 0
    for seed in range(20):
        random, logs, last = np.random.default_rng(seed), np.empty(220), 0.0
        for place in range(220):
            last = logs[place] = 0.9 * last + 0.022 * random.standard_normal()
        logs[150:] += 0.4
        found += any(abs(shift.at - 150) <= 8 for shift in find_shifts(20 * MS * np.exp(logs)))
    assert found >= 18


def test_steps_that_are_no_part_of_the_first_level_still_show_what_is_chance(
    tmp_path: Path,
) -> None:
    """A slow change of the first steps must not hide a jump that is three times as large."""
    random, logs, last = np.random.default_rng(2), np.empty(200), 0.0
    for place in range(200):
        last = 0.5 * last + 0.086 * random.standard_normal()
        logs[place] = last
    logs[33:] += 0.15
    logs[85:] += 0.4
    lengths_ns = 20 * MS * np.exp(logs)
    assert find_settled(lengths_ns) > 0
    trace = Trace.open(series_trace(tmp_path / "run", {"forward": lengths_ns}))
    (change,) = find_changes(trace, np.arange(200))
    assert abs(change.first_step - 85) <= 2


@pytest.mark.parametrize("at", [1_000, 2_300])
def test_a_jump_in_a_drift_makes_no_steps_of_it(tmp_path: Path, at: int) -> None:
    """All shifts of one direction are no bent line then; every shift was reported by itself."""
    steps = np.arange(2_400)
    logs = 0.03 * np.random.default_rng(3).standard_normal(2_400)
    logs += 0.0004 * np.maximum(0, steps - 300) + 0.6 * (steps >= at)
    changes = _changes(tmp_path, np.exp(logs))
    assert len(changes) <= 3
    first, jump = changes[:2]
    assert (first.kind, first.last_step) == (ChangeKind.DRIFT, jump.first_step - 1)
    assert (jump.kind, abs(jump.first_step - at) <= 2) == (ChangeKind.STEP, True)


@pytest.mark.parametrize("later", [40, 50, 60, 70, 80, 90])
def test_a_drift_is_reported_from_its_beginning_on(tmp_path: Path, later: int) -> None:
    """At first it looks like a step; no length between may show nothing."""
    for seed in range(6):
        logs = 0.05 * np.random.default_rng(seed).standard_normal(160 + later)
        logs[160:] += 0.004 * np.arange(later)
        assert _changes(tmp_path / f"{seed}", np.exp(logs))


def _tied(count: int, seed: int) -> Floats:
    """Return noise of 5 % of which neighbouring steps share 90 %."""
    random, noise, last = np.random.default_rng(seed), np.empty(count), 0.0
    for place in range(count):
        last = 0.9 * last + 0.05 * np.sqrt(0.19) * random.standard_normal()
        noise[place] = last
    return noise


def test_a_drift_whose_noise_hides_its_shifts_is_found(tmp_path: Path) -> None:
    drift = np.concatenate([np.zeros(100), np.linspace(0, 0.5, 130)])
    found = []
    for seed in range(8):
        noise = _tied(230, seed)
        assert _changes(tmp_path / f"healthy {seed}", np.exp(noise)) == ()
        changes = _changes(tmp_path / f"drift {seed}", np.exp(noise + drift))
        found.append([change.kind for change in changes])
    assert found.count([ChangeKind.DRIFT]) >= 6
    assert [] not in found


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_neither_noise_nor_a_step_bends_like_a_drift(correlation: float) -> None:
    found = 0
    for seed in range(100):
        random, logs, last = np.random.default_rng(seed), np.empty(200), 0.0
        for place in range(200):
            last = correlation * last + 0.03 * random.standard_normal()
            logs[place] = last
        assert find_drift_alone(logs) is None
        logs[100:] += 0.2
        found += find_drift_alone(logs) is not None
    assert found <= 5


def test_slow_steps_at_regular_intervals_have_their_period(tmp_path: Path) -> None:
    forward = np.exp(_noise("autocorrelated", 4))
    forward[AT::25] *= 2.5
    (change,) = _changes(tmp_path, forward)
    assert change.kind is ChangeKind.PERIODIC
    assert change.every == 25
    assert change.first_step == AT


def test_warm_up_and_healthy_steps_are_no_change(tmp_path: Path) -> None:
    forward = np.exp(_noise("autocorrelated", 5))
    forward[:WARM_UP] *= 3
    assert _changes(tmp_path, forward) == ()


def _looks(slow: npt.NDArray[np.bool_], seed: int) -> Periodic | None:
    """Return what is found first while a run with these slow steps grows."""
    random = np.random.default_rng(seed)
    times = 80 * MS * np.exp(0.01 * random.standard_normal(len(slow)) + 0.4 * slow)
    for count in range(40, len(slow), 20):
        usual = np.full(count, np.median(times[:count]))
        found = find_periodic(np.arange(count), times[:count], usual)
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("share", [0.05, 0.15, 0.2, 0.25, 0.3])
def test_slow_steps_without_order_have_no_period(share: float) -> None:
    """With gaps of about three steps, nearly all differ by at most one from a multiple of it."""
    for seed in range(20):
        slow = np.random.default_rng(seed).random(STEPS) < share
        assert _looks(slow, seed) is None


@pytest.mark.parametrize("every", [3.0, 4.0, 8.3, 20.0, 33.4])
def test_slow_steps_that_a_clock_decides_on_have_a_period(every: float) -> None:
    for seed in range(5):
        slow = np.zeros(STEPS, np.bool_)
        slow[np.arange(0, STEPS - 1, every).astype(np.int64)] = True
        found = _looks(slow, seed)
        assert found is not None
        assert found.every == int(every)


def test_slow_steps_that_come_in_pairs_have_a_period() -> None:
    """A loader that starts again, or a file that is flushed, slows the step after it as well."""
    numbers = np.arange(STEPS)
    usual = np.full(STEPS, 80.0 * MS)
    times = np.select([numbers % 50 == 0, numbers % 50 == 1], [2.5, 1.4], 1.0) * usual
    found = find_periodic(numbers, times, usual)
    assert found is not None
    assert (found.every, set(found.places % 50)) == (50, {0})


def test_steps_that_are_a_little_slow_do_not_hide_those_that_come_regularly() -> None:
    """The machine makes some steps a fifth longer, among those that evaluate."""
    logs = 0.02 * np.random.default_rng(0).standard_normal(200)
    logs[7::12] += 1.5
    logs[[23, 40, 71, 112, 140, 166]] += 0.25
    found = find_periodic(np.arange(200), 23e6 * np.exp(logs), np.full(200, 23e6))
    assert found is not None
    assert (found.every, found.places.tolist()) == (12, list(range(7, 200, 12)))


def test_a_period_is_found_if_steps_are_missing() -> None:
    numbers = np.setdiff1d(np.arange(STEPS), np.arange(0, STEPS, 7))  # as control steps are
    usual = np.full(len(numbers), 80.0 * MS)
    times = np.where(numbers % 20 == 0, 2.5, 1.0) * usual
    found = find_periodic(numbers, times, usual)
    assert found is not None
    assert found.every == 20
    assert set(numbers[found.places] % 20) == {0}


BEFORE_MS = """
23.5 23.5 23.9 23.6 24.8 24.8 24.6 25.0 24.5 24.2 24.7 24.8 24.6 24.6 24.0 23.7 23.7 25.6 26.1 25.0
24.2 24.1 24.2 24.4 25.0 24.9 24.6 23.9 23.3 23.8 23.8 23.7 23.2 23.2 23.6 23.4 22.9 24.1 24.5 24.9
24.6 24.5 25.0 24.5 24.3 23.5 24.3 25.8 25.4 25.5 24.9 24.6 24.2 24.5 24.2 23.9 24.3 23.8 23.9 24.0
23.9
"""
AFTER_MS = """
30.9 30.1 30.9 30.8 30.6 31.3 31.8 30.9 30.1 30.5 30.8 31.5 31.5 32.2 31.9 36.6 30.3 29.5 30.6 30.3
30.9 30.5 30.2 29.9 32.4
"""
"""Steps of a recorded job."""


@pytest.mark.parametrize("left_out", range(10))
def test_a_change_before_the_end_of_a_part_is_found_in_the_next_one(left_out: int) -> None:
    """The first part that is searched ends with the 72nd step, 11 to 20 after the change."""
    before, after = BEFORE_MS.split()[left_out:], AFTER_MS.split()
    step_ms = np.array([*before, *after * 5], dtype=np.float64)
    places = [shift.at for shift in find_shifts(1e6 * step_ms)]
    assert places == [len(before)]


@pytest.mark.parametrize("known", range(41, 53))
def test_a_change_after_few_steps_is_found_by_the_steps_after_it(known: int) -> None:
    """So few steps, whose times move together, have a large noise: a search from them misses it."""
    before, after = BEFORE_MS.split()[-known:], AFTER_MS.split()
    step_ms = np.array([*before, *after * 5], dtype=np.float64)
    assert Levels(1e6 * step_ms).bounds == [0, known, len(step_ms)]
