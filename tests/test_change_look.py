"""How much processor time the detection of changes may take while a job runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.change_points import find_shifts, latest_shift, seems_changed
from profkit.run import change_look
from profkit.run.change_budget import (
    ALARM_CREDIT_S,
    CREDIT_S,
    GLANCE_CREDIT_S,
    LOOK_EVERY_S,
    MOST_CORE,
    MOST_LOAD,
    MOST_S_PER_STEP,
    Budget,
)
from profkit.run.change_glance import Seems
from profkit.run.change_look import MOST_READINGS, WRITING_S, Look, after_writing
from profkit.testing.series import series_trace
from profkit.trace.pulse import PulseWriter
from profkit.trace.tail import Latest, RunTail


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.01, 0.1, 10.0])
@pytest.mark.parametrize("suspect", [True, False])
def test_looks_and_searches_stay_within_their_budget(step_s: float, suspect: bool) -> None:
    """Searches take 30 ms here, looks 0.25 and glances 0.1 ms; the credit may be spent once."""
    budget, spent_s, now_s, pause_s = Budget(), 0.0, 0.0, 1.0
    next_look_s = 0.0
    while now_s < 50_000 * step_s + 3_600:
        now_s += pause_s
        budget.earn(pause_s)
        if now_s < next_look_s:
            budget.pay_glance(0.0001)
            spent_s += 0.0001
        else:
            budget.set_step(step_s)
            spent_s += 0.00025
            next_look_s = now_s + budget.look_pause_s(0.00025)
        if budget.allows(suspect=suspect):
            budget.pay(0.03)
            spent_s += 0.03
        pause_s = max(LOOK_EVERY_S, min(next_look_s - now_s, budget.glance_pause_s(0.0001)))
    allowed = max(MOST_LOAD, min(MOST_CORE, MOST_S_PER_STEP / step_s))
    assert spent_s <= CREDIT_S + GLANCE_CREDIT_S + 0.05 + allowed * now_s
    if step_s == 0.1:
        assert allowed * step_s <= 7e-6


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_whatever_is_found_seems_changed_first(seed: int, correlation: float) -> None:
    random = np.random.default_rng(seed)
    noise, last = 0.03 * random.standard_normal(700), 0.0
    for place, each in enumerate(noise.tolist()):
        last = correlation * last + each
        noise[place] = last
    for rise in (0.1, 0.2, -0.1):
        logs = noise.copy()
        logs[500:] += rise
        shifts = find_shifts(np.exp(logs) * 1e8)
        if shifts:
            assert seems_changed(np.exp(logs) * 1e8, 200)


def test_steps_that_are_alike_do_not_seem_changed() -> None:
    quiet = 0
    for seed in range(20):
        lengths = np.exp(0.02 * np.random.default_rng(seed).standard_normal(1_000)) * 1e8
        quiet += not seems_changed(lengths, 100)
    assert quiet > 12, "nearly every look would search"
    assert not seems_changed(np.full(20, 1e8), 10), "too few steps"


def alike(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 50e6 * np.exp(0.02 * np.random.default_rng(0).standard_normal(count))


def changed(count: int, at: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return step times that become 20 % longer."""
    forward = alike(count)
    forward[at:] *= 1.2
    return forward


def test_a_look_returns_rows_only_if_the_steps_show_a_change(tmp_path: Path) -> None:
    run = series_trace(tmp_path / "alike", {"forward": alike(400)})
    assert Look(run, run / "r00000").look(1.0)[0] is None
    run = series_trace(tmp_path / "changed", {"forward": changed(400, 300)})
    look = Look(run, run / "r00000")
    latest = look.look(1.0)[0]
    assert latest is not None
    assert latest.steps.num_rows == 400
    assert look.look(1.0)[0] is None, "nothing is new"


def test_a_look_returns_rows_of_periodic_slow_steps_until_they_are_known(tmp_path: Path) -> None:
    forward = alike(400)
    forward[::20] *= 2
    run = series_trace(tmp_path / "run", {"forward": forward})
    assert Look(run, run / "r00000").look(1.0)[0] is not None
    assert Look(run, run / "r00000").look(1.0, knows_periodic=True)[0] is None


def test_a_change_that_is_known_is_not_searched_again(tmp_path: Path) -> None:
    run = series_trace(tmp_path / "run", {"forward": changed(400, 300)})
    assert Look(run, run / "r00000").look(1.0, since=300)[0] is None


def test_steps_that_are_too_few_to_show_a_change_are_looked_at_again_soon(tmp_path: Path) -> None:
    short = series_trace(tmp_path / "short", {"forward": 20 * changed(104, 100)})
    latest, pause_s = Look(short, short / "r00000").look(1.0)
    assert latest is None
    assert pause_s <= 25 * 1.2
    for since_s in (30.0, 400.0):
        longer = series_trace(tmp_path / str(since_s), {"forward": 20 * changed(140, 100)})
        latest, _ = Look(longer, longer / "r00000").look(since_s)
        assert latest is not None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("new", [30, 100, 300, 490])
def test_the_last_steps_show_the_change_that_all_of_them_show(seed: int, new: int) -> None:
    noise = 0.03 * np.random.default_rng(seed).standard_normal(600)
    assert latest_shift(np.exp(noise) * 1e8, new) is None
    noise[-new + 2 :] += 0.2
    lengths_ns = np.exp(noise) * 1e8
    (whole,) = find_shifts(lengths_ns)
    latest = latest_shift(lengths_ns, new)
    assert latest is not None
    assert abs(latest.at - whole.at) <= 2
    assert latest.rise == pytest.approx(whole.rise, abs=0.03)


def test_steps_are_taken_from_the_file_that_a_running_rank_keeps(tmp_path: Path) -> None:
    run = series_trace(tmp_path / "run", {"forward": alike(400)})
    pulse = PulseWriter(run / "r00000")
    ends = np.cumsum(changed(400, 300)).astype(int).tolist()
    pulse.add(list(range(400)), [0, *ends[:-1]], ends)
    assert Look(run, run / "r00000").look(1.0)[0] is not None
    pulse.close()
    assert Look(run, run / "r00000").look(1.0)[0] is None, "the table's steps are alike"


def test_a_search_reads_one_rank_however_many_there_are(tmp_path: Path) -> None:
    run = series_trace(tmp_path / "run", {"forward": changed(400, 300)}, ranks=3)
    latest, _ = Look(run, run / "r00001").look(1.0)
    assert latest is not None
    assert [*latest.ranks] == [1]
    assert set(latest.steps["rank"].to_pylist()) == {1}
    assert latest.ranks_in_all == 3


@pytest.mark.parametrize("missing", [0, 3, MOST_READINGS])
def test_a_search_comes_once_all_tables_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Marks that are not read yet would leave steps that profkit made longer to be found."""
    run = series_trace(tmp_path / "run", {"forward": changed(400, 300)})
    whole, readings = RunTail(run, marks=True).look(), 0

    def read_a_part(tail: RunTail) -> Latest:
        nonlocal readings
        readings += 1
        return dataclasses.replace(whole, behind=readings <= missing)

    monkeypatch.setattr(RunTail, "look", read_a_part)
    latest = Look(run, run / "r00000").look(1.0)[0]
    assert (latest is not None) == (missing < MOST_READINGS)
    assert latest is None or not latest.behind


def keep_pulse(run: Path, lengths_ns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> PulseWriter:
    """Write the file that a running rank keeps."""
    pulse = PulseWriter(run / "r00000")
    add_steps(pulse, 0, lengths_ns)
    return pulse


def add_steps(
    pulse: PulseWriter, first: int, lengths_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    ends = np.cumsum(lengths_ns).astype(int).tolist()
    pulse.add(list(range(first, first + len(ends))), [0, *ends[:-1]], ends)


@pytest.mark.parametrize("later", [12, 40])
def test_a_glance_finds_a_change_long_before_the_next_look_is_due(
    tmp_path: Path, later: int
) -> None:
    run = series_trace(tmp_path / "run", {"forward": changed(400 + later, 400)})
    pulse = keep_pulse(run, alike(400))
    look = Look(run, run / "r00000")
    assert look.look(0.5)[0] is None
    assert look.look(0.01)[0] is None, "nothing is new"
    add_steps(pulse, 400, changed(400 + later, 400)[400:])
    latest, _ = look.look(0.01)
    assert latest is not None
    assert latest.steps.num_rows == 400 + later


def test_glances_stop_if_their_looks_find_nothing(tmp_path: Path) -> None:
    """A job whose steps alternate between two lengths must not be looked at all the time."""
    run = series_trace(tmp_path / "run", {"forward": alike(400)})
    pulse = keep_pulse(run, alike(400))
    look = Look(run, run / "r00000")
    look.look(0.5)
    look.budget.pay(CREDIT_S)
    assert look.budget.allows(suspect=True, sure=True)
    look.budget.pay(ALARM_CREDIT_S)
    add_steps(pulse, 400, 1.2 * alike(40))
    assert look.look(0.01)[0] is None
    assert look.budget.allows_more_looks(Seems.CHANGED) is False


@pytest.mark.parametrize("seed", range(3))
def test_a_sure_change_is_found_although_searches_have_used_their_time_up(
    tmp_path: Path, seed: int
) -> None:
    """Searches of steps that only seemed changed must not hide a change for good."""
    lengths_ns = 1e6 * np.exp(0.03 * np.random.default_rng(seed).standard_normal(2_000))
    lengths_ns[1_400:] *= 1.2
    run = series_trace(tmp_path / "run", {"forward": lengths_ns[:1_800]})
    pulse = keep_pulse(run, lengths_ns[:900])
    look = Look(run, run / "r00000")
    assert look.look(0.5)[0] is None
    look.budget.pay(10 * CREDIT_S)
    add_steps(pulse, 900, lengths_ns[900:1_300])
    assert look.look(0.5)[0] is None
    add_steps(pulse, 1_300, lengths_ns[1_300:1_800])
    assert look.look(0.5)[0] is not None


def test_a_search_of_many_new_steps_settles_a_suspicion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = series_trace(tmp_path / "run", {"forward": alike(1_000)})
    pulse = keep_pulse(run, alike(1_000))
    look = Look(run, run / "r00000")
    assert look.look(0.5)[0] is None
    searches: list[bool] = []
    add_steps(pulse, 1_000, alike(100))
    monkeypatch.setattr(look, "_steps_since_change", searches.append)
    assert look.look(60.0)[0] is None
    assert not searches


def test_steps_that_only_may_have_changed_are_searched_from_savings(tmp_path: Path) -> None:
    """Ranks of a job make its steps uneven, so a late one is within five spreads of the noise."""
    random = np.random.default_rng(3)
    lengths_ns = 25e6 * np.exp(0.06 * random.standard_normal(140))
    lengths_ns[100:] *= 1.2
    run = series_trace(tmp_path / "run", {"forward": lengths_ns})
    pulse = keep_pulse(run, lengths_ns[:60])
    look = Look(run, run / "r00000")
    assert look.look(0.5)[0] is None
    add_steps(pulse, 60, lengths_ns[60:100])
    assert look.look(0.01)[0] is None
    add_steps(pulse, 100, lengths_ns[100:])
    assert look.look(0.01)[0] is not None
    look.budget.pay(CREDIT_S / 4)
    assert look.budget.allows_more_looks(Seems.CHANGED) is True
    assert look.budget.allows_more_looks(Seems.POSSIBLY_CHANGED) is False


def test_what_is_usual_is_learned_again_from_more_steps(tmp_path: Path) -> None:
    """The first steps of this job are uneven, and a change is within their range."""
    logs = 0.02 * np.random.default_rng(0).standard_normal(300)
    logs[:60] *= 8
    logs[200:] += 0.15
    lengths_ns = 50e6 * np.exp(logs)
    run = series_trace(tmp_path / "run", {"forward": lengths_ns})
    pulse = keep_pulse(run, lengths_ns[:60])
    look, found = Look(run, run / "r00000"), []
    for step in range(60, 300, 10):
        if look.look(0.5)[0] is not None:
            found.append(step)
        add_steps(pulse, step, lengths_ns[step : step + 10])
    assert found
    assert min(found) > 200


def test_a_change_that_the_tables_do_not_show_yet_is_searched_again_soon(tmp_path: Path) -> None:
    """A rank writes the lengths of its steps before the rows of its tables."""
    lengths_ns = changed(150, 70)
    run = series_trace(tmp_path / "run", {"forward": lengths_ns})
    pulse = keep_pulse(run, lengths_ns[:120])
    look = Look(run, run / "r00000")
    assert look.look(0.5)[0] is not None
    add_steps(pulse, 120, lengths_ns[120:])
    assert look.look(1.25)[0] is not None


def test_the_first_steps_are_no_noise(tmp_path: Path) -> None:
    """A job warms up: its first steps would hide a change for as long as they are kept."""
    lengths_ns = changed(100, 80)
    lengths_ns[:10] *= np.linspace(20, 1.5, 10)
    run = series_trace(tmp_path / "run", {"forward": lengths_ns})
    look = Look(run, run / "r00000")
    assert look.look(1.0)[0] is not None


@pytest.mark.parametrize("seed", range(4))
def test_uneven_first_steps_do_not_hide_a_change(tmp_path: Path, seed: int) -> None:
    """A look sees it soon, although these steps are still kept."""
    logs = 0.03 * np.random.default_rng(seed).standard_normal(200)
    logs[:60] *= 6
    logs[140:] += 0.25
    lengths_ns = 25e6 * np.exp(logs)
    run = series_trace(tmp_path / "run", {"forward": lengths_ns})
    pulse = keep_pulse(run, lengths_ns[:50])
    look, found = Look(run, run / "r00000"), []
    for step in range(50, 200, 10):
        if look.look(0.5)[0] is not None:
            found.append(step)
            assert look.new_from <= 140
        add_steps(pulse, step, lengths_ns[step : step + 10])
    assert found
    assert 140 < min(found) <= 180


def test_the_first_looks_come_as_soon_as_there_are_steps_to_compare(tmp_path: Path) -> None:
    run = series_trace(tmp_path / "run", {"forward": alike(30)})
    keep_pulse(run, alike(30))
    assert Look(run, run / "r00000").look(0.5)[1] <= 1.5  # 28 more steps of 50 ms


@pytest.mark.parametrize("written_s", [0.0, 0.1, 0.3, 0.49, 0.6, 0.99])
@pytest.mark.parametrize("pause_s", [0.5, 0.7, 1.0])
def test_a_short_pause_ends_just_after_the_rank_has_written(
    written_s: float, pause_s: float
) -> None:
    found_s = after_writing(pause_s, written_s)
    assert LOOK_EVERY_S / 2 <= found_s <= pause_s + LOOK_EVERY_S
    writings = (written_s + found_s - WRITING_S) / LOOK_EVERY_S
    assert writings == pytest.approx(round(writings))


@pytest.mark.parametrize("written_s", [None, -0.1, 3.0])
def test_a_pause_is_as_planned_if_the_rank_does_not_write(written_s: float | None) -> None:
    assert after_writing(0.5, written_s) == 0.5
    assert after_writing(30.0, 0.1) == 30.0


def test_a_drift_whose_noise_hides_its_shifts_is_found(tmp_path: Path) -> None:
    random, logs, last = np.random.default_rng(0), np.zeros(230), 0.0
    logs[100:] = np.linspace(0, 0.5, 130)
    for place in range(230):
        last = 0.9 * last + 0.022 * random.standard_normal()
        logs[place] += last
    lengths_ns = 50e6 * np.exp(logs)
    assert latest_shift(lengths_ns, 70) is None
    run = series_trace(tmp_path / "run", {"forward": lengths_ns})
    pulse = keep_pulse(run, lengths_ns[:160])
    look = Look(run, run / "r00000")
    assert look.look(0.5)[0] is None
    add_steps(pulse, 160, lengths_ns[160:])
    assert look.look(100.0)[0] is not None


def test_looks_at_short_steps_have_others_to_compare_them_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all steps that are kept were new, each look would search them."""
    lengths_ns, suspicions = alike(8_000) / 50 * 1.002, []

    def judge(lengths: np.ndarray[tuple[int], np.dtype[np.float64]], new: int) -> bool:
        suspicions.append(seems_changed(lengths, new))
        return suspicions[-1]

    monkeypatch.setattr(change_look, "seems_changed", judge)
    monkeypatch.setattr(Budget, "look_pause_s", lambda budget, look_s: 1.002 * LOOK_EVERY_S)
    run = series_trace(tmp_path / "run", {"forward": lengths_ns[:1000]})
    pulse, ends_s = PulseWriter(run / "r00000"), np.cumsum(lengths_ns) / 1e9
    look, now_s, pause_s, written = Look(run, run / "r00000"), 0.0, LOOK_EVERY_S, 0
    while now_s + pause_s < ends_s[-1]:
        now_s += pause_s
        ended = int(np.searchsorted(ends_s, now_s))
        add_steps(pulse, written, lengths_ns[written:ended])
        written = ended
        pause_s = look.look(pause_s)[1]
    assert suspicions.count(True) <= 1, suspicions
